package status

import (
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestAssessObserved(t *testing.T) {
	on, runs := MemberView{Node: "n"}, MemberView{Node: "n", Running: true}
	for name, c := range map[string]struct {
		v    View
		want v1alpha1.GangPhase
		true string
	}{
		"no pods":       {View{Size: 2}, v1alpha1.PhaseWaiting, ""},
		"one on a node": {View{Size: 2, Members: []MemberView{runs, {}}}, v1alpha1.PhaseWaiting, ""},
		"starting":      {View{Size: 2, Members: []MemberView{runs, on}}, v1alpha1.PhaseStarting, "Placed"},
		"running":       {View{Size: 2, Members: []MemberView{runs, runs}}, v1alpha1.PhaseRunning, "Placed Running"},
		"complete":      {View{Size: 2, JobEnded: true}, v1alpha1.PhaseFinished, "Complete"},
		"failed":        {View{Size: 2, JobEnded: true, JobFailed: true}, v1alpha1.PhaseFailed, "Failed"},
	} {
		c.v.Observed = true
		s := Assess(c.v)
		holds := ""
		for _, cond := range s.Conditions {
			if cond.True && holds != "" {
				holds += " "
			}
			if cond.True {
				holds += cond.Type
			}
			if cond.Reason == "" || cond.Message == "" {
				t.Errorf("%s: condition %+v", name, cond)
			}
		}
		if s.Phase != c.want || holds != c.true {
			t.Errorf("%s: phase %s, true are %q", name, s.Phase, holds)
		}
	}
}
