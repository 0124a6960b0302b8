package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// What NVIDIA's GPU Operator writes on a Node while it needs the driver for itself: its upgrade of drivers has come to where
// the driver's pod
// is replaced; or its driver manager, or its manager of MIG, has paused what uses the GPUs.
const (
	labelUpgrade   = "nvidia.com/gpu-driver-upgrade-state"
	upgradeRestart = "pod-restart-required"
	labelsDeploy   = "nvidia.com/gpu.deploy."
	deployPaused   = "paused-for-"
)

// maxWord bounds what is repeated of an annotation that people write, in bytes.
const maxWord = 64

// releasedBy says at whose word the GPUs are to be let go of; empty: at none.
func releasedBy(n *object) string {
	if said, ok := n.Metadata.Annotations[v1alpha1.AnnotationReleaseGPUs]; ok && said != "false" {
		return fmt.Sprintf("annotation %s=%s", v1alpha1.AnnotationReleaseGPUs, strings.ToValidUTF8(said[:min(len(said), maxWord)], ""))
	}
	if n.Metadata.Labels[labelUpgrade] == upgradeRestart {
		return "label " + labelUpgrade + "=" + upgradeRestart
	}
	for _, key := range slices.Sorted(maps.Keys(n.Metadata.Labels)) {
		if value := n.Metadata.Labels[key]; strings.HasPrefix(key, labelsDeploy) && strings.HasPrefix(value, deployPaused) {
			return "label " + key + "=" + value
		}
	}
	return ""
}
