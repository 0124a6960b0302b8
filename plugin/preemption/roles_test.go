package preemption

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/plugin/plugintest"
)

// TestGangsOfSeveralTemplatesPreempt: whichever template's pods lack room, the victim gang is preempted with the pods of all its templates,
// and room is held for the pods of all templates of the preempting gang.
func TestGangsOfSeveralTemplatesPreempt(t *testing.T) {
	steering := func(name string) *v1.Node { return plugintest.Labelled(node(name, 0), plugintest.Steering, "true") }
	of := map[string]func(name string) []*v1.Pod{
		"PyTorchJob": func(name string) []*v1.Pod { return plugintest.PyTorchJob(name, 2, 4) },
		"JobSet":     func(name string) []*v1.Pod { return plugintest.JobSet(name, 2, 1, 4) },
	}
	for name, podsOf := range of {
		for lacks, nodes := range map[string][]*v1.Node{
			"the first pod's node": {steering("s0"), node("a", 4), node("b", 4), node("c", 4), node("d", 4)},
			"the workers' nodes":   {steering("s0"), steering("s1"), node("a", 4), node("b", 4)},
		} {
			t.Run(name+" lacks "+lacks, func(t *testing.T) {
				low, high := prior(0, podsOf("low")), prior(5, podsOf("high"))
				for i, at := range []string{"s0", "a", "b"} {
					on(low[i], at)
				}
				s := newStage(t, objects(nodes, low)...)
				s.waits(high)
				s.seek("high", "")
				h, held := s.p.rooms.Get(key("high"))
				if !held || h.Reserved || !slices.Equal(h.victims, []string{"gang ns/low"}) || len(h.assignments) != len(high) {
					t.Errorf("held: %v %+v (%s), want all of low to leave and room for %d pods", held, h, s.p.Why(key("high")), len(high))
				}
			})
		}
	}
}

func objects(nodes []*v1.Node, pods []*v1.Pod) (all []runtime.Object) {
	for _, n := range nodes {
		all = append(all, n)
	}
	for _, p := range pods {
		all = append(all, p)
	}
	return all
}
