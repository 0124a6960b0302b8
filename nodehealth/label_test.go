package nodehealth_test

import (
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// TestCauseLabel: causes that Holdfast writes are unchanged. All other texts become one word.
func TestCauseLabel(t *testing.T) {
	known := []string{"", budget.CauseUnreachable, "NodeGone", "PodDeleted", "HardwareSuspected", "NodeShutdown", "Evicted"}
	for _, r := range nodehealth.Catalogue {
		known = append(known, string(r.Cause))
	}
	for _, c := range known {
		if got := nodehealth.CauseLabel(c, v1alpha1.ControllerCauses); got != c {
			t.Errorf("%q is told as %q", c, got)
		}
	}
	for _, c := range []string{"gpulost", "GPULost ", "x-4711", "\xff"} {
		if got := nodehealth.CauseLabel(c, v1alpha1.ControllerCauses); got != "Other" {
			t.Errorf("%q is told as %q", c, got)
		}
	}
}
