package gangcache

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// A pod's own topology request overrides that of its group.
func TestAsks(t *testing.T) {
	of := Terms{Topology: gang.Topology{Required: "tier"}}
	p := asking(memberPod("g", 0, 1, 1), v1alpha1.AnnotationSpares, "1")
	if got, err := Asks(p, of); err != nil || got.Required != "tier" || got.Spares != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	p.Annotations[v1alpha1.AnnotationTopologyPreferred] = "rack"
	if got, err := Asks(p, of); err != nil || got.Required != "" || got.Preferred != "rack" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWhoJoinsIsNotWhatWasLost: a gang with a minimum does not go first for pods beyond that minimum. Otherwise a user who adds one pod
// after another to a running group would keep all other gangs of its priority waiting.
func TestWhoJoinsIsNotWhatWasLost(t *testing.T) {
	for name, c := range map[string]struct {
		terms       Terms
		want, tasks bool
	}{
		"all are needed":            {Terms{Size: 3}, true, false},
		"two are":                   {Terms{Size: 2, Min: 2}, false, false},
		"two are, one of each task": {Terms{Size: 2, Min: 2, Tasks: map[string]int{"a": 1, "b": 1}}, true, true},
	} {
		l, k := newCache(), key("g")
		l.config.Terms = func(types.NamespacedName, *v1.Pod) (Terms, error) { return c.terms, nil }
		for i := range 3 {
			p := memberPod("g", i, 3, 1)
			if c.tasks {
				p.Annotations["volcano.sh/task-spec"] = []string{"a", "a", "b"}[i]
			}
			l.Observe(k, p)
			enter(l, p)
			if i < 2 {
				on := p.DeepCopy()
				on.Spec.NodeName = "n"
				l.Observe(k, on)
			}
		}
		g := l.groups[k]
		g.phase = whole
		turn, ok := l.GangTurn(k)
		if s := g.snapshot(); !ok || turn.Key.Degraded != c.want || s.Degraded() != c.want {
			t.Errorf("%s: ahead %v, asked %v, want %v (%v)", name, turn.Key.Degraded, s.Degraded(), c.want, ok)
		}
	}
}
