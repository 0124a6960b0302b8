package membership

import (
	"slices"
	"strings"
)

// rejects are the reasons in a pod's status with which a kubelet does not admit the pod and another node might, beside those that name a
// resource ("OutOfcpu"). A pod that no node would admit, because of its own settings, has another reason.
var rejects = []string{"UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts", "TaintToleration", "AdmissionError",
	"VolumeAttachmentLimitExceeded"}

// ends are the reasons with which a kubelet ends a pod, or does not admit it, because of what happens to the node: pressure, shutdown, a
// critical pod that needs the room.
var ends = []string{"Evicted", "Terminated", "NodeShutdown", "Preempting"}

// Rejects reports whether the reason of a failed pod's status says that its kubelet did not admit it, and its node is at fault.
func Rejects(reason string) bool {
	return strings.HasPrefix(reason, "OutOf") || slices.Contains(rejects, reason)
}

// NodeEnds reports whether the reason of a failed pod's status says that its kubelet did not admit it or ended it, and its node is at
// fault.
func NodeEnds(reason string) bool { return Rejects(reason) || slices.Contains(ends, reason) }
