package status

import (
	"fmt"

	"holdfast.dev/holdfast/gang"
)

// observed is the status of a gang that is only watched: what its pods and its job say.
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
		s.Phase = Failed
	case v.JobEnded:
		s.Phase = Finished
	case bound < v.Size:
		s.Phase = Waiting
	case running >= v.Size:
		s.Phase = Running
	default:
		s.Phase = Starting
	}
	placed := Condition{Type: "Placed", True: bound >= v.Size, Reason: "Placed", Message: fmt.Sprintf("%d of %s on nodes", bound, count(v.Size, "pod is", "pods are"))}
	if !placed.True {
		placed.Reason = gang.WaitingForMembers
	}
	runs := Condition{Type: "Running", True: s.Phase == Running, Reason: string(s.Phase), Message: fmt.Sprintf("observed: %d of %s", running, count(v.Size, "pod runs", "pods run"))}
	if s.Phase == Waiting {
		runs.Reason = gang.WaitingForMembers
	}
	s.Conditions = []Condition{placed, runs, v.finished(s.Phase)}
	return s
}
