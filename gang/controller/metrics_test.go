package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The series of a gang exist as long as its Job.
func TestGangMetrics(t *testing.T) {
	w := newWorld(t, job(admitted()))
	registry := prometheus.NewRegistry()
	if err := w.c.metrics.register(registry); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.others("run", map[string]any{"run": map[string]any{"generation": 1, "restarts": 0, "startedAt": "2026-01-02T03:04:00.000000Z",
		"progress": map[string]any{"step": 12, "lostMs": 1000}}})
	w.reconcile()
	const want = `
# HELP holdfast_gang_goodput_ratio Share of the time since the first start that was spent on steps that were kept; absent where unknown.
# TYPE holdfast_gang_goodput_ratio gauge
holdfast_gang_goodput_ratio{gang="llama",namespace="team"} 0.8
# HELP holdfast_gang_lost_seconds Training time lost to recoveries so far.
# TYPE holdfast_gang_lost_seconds gauge
holdfast_gang_lost_seconds{gang="llama",namespace="team"} 1
# HELP holdfast_gang_phase 1 for the present phase of a gang, with its reason.
# TYPE holdfast_gang_phase gauge
holdfast_gang_phase{gang="llama",namespace="team",phase="Waiting",reason="WaitingForMembers"} 1
# HELP holdfast_gang_step Newest step that all ranks finished; absent where unknown.
# TYPE holdfast_gang_step gauge
holdfast_gang_step{gang="llama",namespace="team"} 12
# HELP holdfast_gangs Gangs of a namespace, those that are over included.
# TYPE holdfast_gangs gauge
holdfast_gangs{namespace="team"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	w.others("run", map[string]any{"run": map[string]any{"generation": 2, "restarts": 1, "startedAt": "2026-01-02T03:04:00.000000Z",
		"progress": map[string]any{"optimizerSteps": 7, "resumeUnknown": 1}}})
	w.reconcile()
	if n, err := testutil.GatherAndCount(registry, "holdfast_gang_goodput_ratio", "holdfast_gang_step"); n != 0 || err != nil {
		t.Errorf("%d unknown figures, %v", n, err)
	}
	if c := w.condition(v1alpha1.ConditionGoodputKnown); !strings.Contains(c, v1alpha1.ReasonResumePointUnknown) ||
		w.gang().Status.GoodputPercent != nil ||
		w.gang().Status.Step != 0 {
		t.Errorf("condition %+v, goodput %v, step %d", c, w.gang().Status.GoodputPercent, w.gang().Status.Step)
	}
	if err := w.client.Delete(t.Context(), job(admitted())); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d figures of a Job that is gone, %v", n, err)
	}
}
