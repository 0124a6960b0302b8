package status

import (
	"fmt"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// observed returns the status of an observed gang, from its pods and its job.
func (v View) observed(bound int) Status {
	running := 0
	for _, m := range v.Members {
		if m.Running {
			running++
		}
	}
	s := Status{Nodes: fmt.Sprintf("%d/%d", bound, v.Size)}
	switch {
	case v.JobEnded && v.JobFailed:
		s.Phase = v1alpha1.PhaseFailed
	case v.JobEnded:
		s.Phase = v1alpha1.PhaseFinished
	case bound < v.Size:
		s.Phase = v1alpha1.PhaseWaiting
	case running >= v.Size:
		s.Phase = v1alpha1.PhaseRunning
	default:
		s.Phase = v1alpha1.PhaseStarting
	}
	placed := Condition{
		Type:    v1alpha1.ConditionPlaced,
		True:    bound >= v.Size,
		Reason:  v1alpha1.ReasonPlaced,
		Message: fmt.Sprintf("%d of %s on nodes", bound, gang.Count(v.Size, "pod is", "pods are")),
	}
	if !placed.True {
		placed.Reason = v1alpha1.ReasonWaitingForMembers
	}
	runs := Condition{
		Type:    v1alpha1.ConditionRunning,
		True:    s.Phase == v1alpha1.PhaseRunning,
		Reason:  string(s.Phase),
		Message: fmt.Sprintf("observed: %d of %s", running, gang.Count(v.Size, "pod runs", "pods run")),
	}
	if s.Phase == v1alpha1.PhaseWaiting {
		runs.Reason = v1alpha1.ReasonWaitingForMembers
	}
	s.Conditions = append([]Condition{placed, runs}, v.over(s.Phase)...)
	return s
}
