package translate

import (
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
)

// otherCause stands for every cause that this version does not know.
const otherCause = "Other"

// CauseLabel is a node's cause as the label of a metric. Causes come from annotations, in which anything may stand, so
// one that no part of this version writes is told as one word: the number of time series has a bound.
func CauseLabel(cause string) string {
	switch cause {
	case "", v1alpha1.CauseNodeSilent, v1alpha1.CauseNodeGone, v1alpha1.CauseDeleted, v1alpha1.CauseAgentSilent, v1alpha1.CauseHardwareSuspected, v1alpha1.CauseNodeShutdown, v1alpha1.CauseEvicted, v1alpha1.CauseJobSuspended:
		return cause
	}
	if _, ok := nodehealth.RowOf(nodehealth.Cause(cause)); ok {
		return cause
	}
	return otherCause
}
