package status

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestFailuresOnNodes: a running pod on a sick node is a failure; a planned eviction and a decision about another pod are none.
func TestFailuresOnNodes(t *testing.T) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u-1"},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for name, c := range map[string]struct {
		outage v1alpha1.NodeOutage
		want   int
	}{
		"sick":               {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "GPULost"}, 1},
		"sick and held":      {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionHold, Cause: "GPULost"}, 1},
		"sick and requested": {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "GPULost", Requested: true}, 1},
		"excluded":           {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionExclude, Cause: "TooHot"}, 0},
		"planned":            {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: v1alpha1.CauseEvictedByHand, Requested: true}, 0},
		"planned and held":   {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionHold, Cause: v1alpha1.CauseEvictedByHand, Requested: true}, 0},
		"this pod alone":     {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "GPULost", Pod: "u-1"}, 1},
		"another pod alone":  {v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "GPULost", Pod: "u-2"}, 0},
	} {
		if got := failuresOf([]corev1.Pod{pod}, 0, map[string]v1alpha1.NodeOutage{"n": c.outage}); len(got) != c.want {
			t.Errorf("%s: %+v, want %d", name, got, c.want)
		}
	}
}
