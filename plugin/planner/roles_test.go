package planner

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/plugintest"
)

// TestGangsOfSeveralTemplates: one plan places the pods of all templates of a gang, or none. Filters run once per template, not once per
// pod nor once per Job of a JobSet.
func TestGangsOfSeveralTemplates(t *testing.T) {
	steering := func() *v1.Node { return labelled(node("steering", 0), plugintest.Steering, "true") }
	workers := func(n int) (all []runtime.Object) {
		for i := range n {
			all = append(all, node(fmt.Sprintf("n%02d", i), 4))
		}
		return all
	}
	for name, pods := range map[string][]*v1.Pod{
		"PyTorchJob": plugintest.PyTorchJob("g", 6, 4),
		"JobSet":     plugintest.JobSet("g", 3, 2, 4),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, append(workers(6), steering())...)
			cycle := newPlanCycle(t.Context(), s.planner, s.Nodes(), asked(pods))
			kinds := map[string]bool{}
			if refusal := cycle.sort(); refusal != nil || cycle.coarse {
				t.Fatalf("%+v, coarse %t", refusal, cycle.coarse)
			}
			for _, k := range cycle.like {
				kinds[k] = true
			}
			if len(kinds) != 2 {
				t.Errorf("%d kinds of pods of two templates", len(kinds))
			}
			placement, refusal := s.answer(pods)
			if refusal != nil || placement.Placed != len(pods) {
				t.Fatalf("%d of %d placed, %+v", placement.Placed, len(pods), refusal)
			}
			used, at := map[string]bool{}, placement.At()
			for i, p := range pods {
				used[at[p.Name]] = true
				if i == 0 && at[p.Name] != "steering" {
					t.Errorf("%s is on %s", p.Name, at[p.Name])
				}
			}
			if len(used) != len(pods) {
				t.Errorf("%d pods that fill their nodes are on %d: %v", len(pods), len(used), at)
			}
			for lacks, nodes := range map[string][]runtime.Object{"a worker's node": append(workers(5), steering()), "the first pod's node": workers(6)} {
				placement, refusal := newStage(t, nodes...).answer(pods)
				if refusal == nil || refusal.Reason != gang.InsufficientNodes || placement.Placed != 0 || refusal.Wanted != len(pods) {
					t.Errorf("without %s: %d placed, %+v", lacks, placement.Placed, refusal)
				}
			}
		})
	}
}
