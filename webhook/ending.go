package webhook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// localVolumesKey lists the volumes of a pod that do not keep the cluster autoscaler from removing its node.
const localVolumesKey = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

// excuseVolumes adds the injected volumes to those that may be lost with their node: their content is copied before, or created
// again. Another annotation reports whether the pod may be moved.
func excuseVolumes(pod *corev1.Pod) {
	var names []string
	for name := range strings.SplitSeq(pod.Annotations[localVolumesKey], ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	before := len(names)
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && slices.Contains([]string{volumeRun, volumeMemory, volumeShm}, v.Name) && !slices.Contains(names, v.Name) {
			names = append(names, v.Name)
		}
	}
	if len(names) > before {
		pod.Annotations = setKey(pod.Annotations, localVolumesKey, strings.Join(names, ","))
	}
}

// leastGrace, in seconds, is what the kubelet leaves between SIGTERM and SIGKILL however long preStop took.
const leastGrace = 2

// graceAfterHook is how long the training container has between SIGTERM and SIGKILL: the kubelet runs preStop before, within the
// pod's grace. A hook of unknown duration counts as zero, and note says so.
func (t *training) graceAfterHook() (seconds int64, note string) {
	grace := graceSeconds(t.spec)
	if c := t.container(); c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		took, known := hookSeconds(c.Lifecycle.PreStop)
		if !known {
			return grace, fmt.Sprintf("lifecycle.preStop of container %s takes an unknown part of terminationGracePeriodSeconds (%d): "+
				"the copy of a terminating pod's state may not finish; write preStop as sleep, or raise the grace period by the hook's duration", c.Name, grace)
		}
		if took > 0 {
			return max(grace-took, min(grace, leastGrace)), ""
		}
	}
	return grace, ""
}

// hookSeconds is how long a hook takes, if it only sleeps.
func hookSeconds(h *corev1.LifecycleHandler) (seconds int64, known bool) {
	switch {
	case h.Sleep != nil:
		return h.Sleep.Seconds, true
	case h.Exec == nil:
		return 0, h.HTTPGet == nil && h.TCPSocket == nil
	}
	for _, argv := range launch.Plain(h.Exec.Command) {
		if len(argv) != 2 || argv[0] != "sleep" && !strings.HasSuffix(argv[0], "/sleep") {
			return 0, false
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(argv[1], "s"), 10, 31)
		if err != nil {
			return 0, false
		}
		seconds, known = seconds+int64(n), true
	}
	return seconds, known
}

// hooksShare names the part of the grace period that preStop uses.
func hooksShare(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf(", of which preStop uses %d", seconds)
}
