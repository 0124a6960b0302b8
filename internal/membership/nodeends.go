package membership

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const evicted = "Evicted"

// rejects are the reasons in a pod's status with which a kubelet does not admit the pod and another node might, beside those that name a
// resource ("OutOfcpu"). A pod that no node would admit, because of its own settings, has another reason.
var rejects = []string{"UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts", "TaintToleration", "AdmissionError",
	"VolumeAttachmentLimitExceeded"}

// ends are the reasons with which a kubelet ends a pod, or does not admit it, because of what happens to the node: pressure, shutdown, a
// critical pod that needs the room.
var ends = []string{evicted, "Terminated", "NodeShutdown", "Preempting"}

// Rejects reports whether the reason of a failed pod's status says that its kubelet did not admit it, and its node is at fault.
func Rejects(reason string) bool {
	return strings.HasPrefix(reason, "OutOf") || slices.Contains(rejects, reason)
}

// NodeEnds reports whether the status of a failed pod says that its kubelet did not admit it or ended it, and its node is at fault. A
// kubelet also evicts a pod that exceeds a limit of its own volumes: then it has containers, and no condition says that its node ended it.
func NodeEnds(s corev1.PodStatus) bool {
	if s.Reason == evicted && len(s.ContainerStatuses) > 0 {
		return slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
		})
	}
	return Rejects(s.Reason) || slices.Contains(ends, s.Reason)
}
