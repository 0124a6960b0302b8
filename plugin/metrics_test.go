package plugin

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast.dev/holdfast/gang"
)

func TestMostly(t *testing.T) {
	for want, excluded := range map[string]map[gang.Cause][]string{
		"none": nil,
		"cordoned": {
			{Kind: gang.Cordoned}: {"a", "b"}, {Kind: gang.Insufficient, Name: gpu}: {"c"}},
		"insufficient " + gpu: {
			{Kind: gang.Cordoned}: {"a"}, {Kind: gang.Insufficient, Name: gpu}: {"c", "d"}},
		"tainted": {
			{Kind: gang.Tainted, Name: "x"}: {"a"}, {Kind: gang.Tainted, Name: "y"}: {"b"}, {Kind: gang.Cordoned}: {"c"}},
	} {
		if got := mostly(excluded); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAnswersAreCounted(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("big", 0, 1, 8))
	w.until("the refusal", w.says("big", "1 pod wanted"))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*"}))
	m := w.instances.measures
	w.until("the placement to be counted", func() bool {
		return testutil.CollectAndCount(m.plans) == 2 && count(t, m.placed) == 1 && count(t, m.waited) == 1
	})
	if got := testutil.ToFloat64(m.refusals.WithLabelValues(gang.InsufficientNodes, "insufficient "+gpu)); got < 1 {
		t.Errorf("%v refusals", got)
	}
}

// searches returns the number of searches for room.
func (w *world) searches() uint64 {
	w.t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(w.instances.Metrics()...)
	all, err := r.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "holdfast_gang_preemption_search_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}

// count returns how many values a histogram has observed.
func count(t *testing.T, h prometheus.Histogram) uint64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(h)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all[0].GetMetric()[0].GetHistogram().GetSampleCount()
}
