package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// What NVIDIA's GPU Operator writes on a Node while it needs the driver for itself: its driver upgrade is about to replace the driver's
// pod, or its driver manager or MIG manager has paused what uses the GPUs.
const (
	labelUpgrade   = "nvidia.com/gpu-driver-upgrade-state"
	upgradeRestart = "pod-restart-required"
	labelsDeploy   = "nvidia.com/gpu.deploy."
	deployPaused   = "paused-for-"
)

// maxWord bounds how much of a user's annotation is repeated, in bytes.
const maxWord = 64

// releasedBy returns the annotation or label that makes the daemon release the GPUs; empty: none.
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
