package plugin

import (
	"bytes"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/gang/replay"
	"holdfast.dev/holdfast/plugin/serve"
)

// A record that was written to a file gives the scheduler's answer without any cluster.
func TestADecisionIsMadeAgainOffline(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), on(pod("blocker", 2), "a"))
	for _, p := range gangOf("many", 3, 2) {
		w.create(p)
	}
	for _, p := range gangOf("apart", 3, 1) { // a rule among members, beyond counts
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"holdfast.dev/gang": "apart"}}}}}}
		w.create(p)
	}
	for name, why := range map[string]string{"many": "3 pods wanted, 2 fit", "apart": "3 pods wanted"} {
		w.until("the refusal", w.says(name, why))
		record, err := w.instances.Dump(w.ctx, "ns", name)
		if err != nil {
			t.Fatal(err)
		}
		if said := w.placement(name).Message; record.Answer.Placed || record.Answer.Message != said || len(record.Nodes) != 3 {
			t.Errorf("the scheduler said %q, the record has %+v", said, record.Answer)
		}
		var file bytes.Buffer
		if err := record.Write(&file); err != nil {
			t.Fatal(err)
		}
		read, err := replay.Read(&file)
		if err != nil {
			t.Fatal(err)
		}
		again, err := replay.Run(read)
		if err != nil {
			t.Fatal(err)
		}
		if d := record.Answer.Differences(again); len(d) > 0 {
			t.Errorf("%s: %q", name, d)
		}
	}
	var bad *serve.InvalidError
	if _, err := w.instances.Dump(w.ctx, "ns", "nobody"); !errors.As(err, &bad) {
		t.Errorf("an unknown gang: %v", err)
	}
}
