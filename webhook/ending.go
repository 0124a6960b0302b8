package webhook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// localVolumesKey lists the volumes of a pod for which the cluster autoscaler keeps no node.
const localVolumesKey = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

// excuseVolumes adds the volumes that injection added to those that may go with their node: what they hold is copied
// before, or made again. Whether the pod as a whole may be moved is another annotation's to say.
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

// graceAfterHook is how long the training container has between SIGTERM and SIGKILL: the kubelet runs preStop before, within
// the pod's grace. A hook that does not tell how long it takes is counted as nothing, and note says so.
func (t *training) graceAfterHook() (seconds int64, note string) {
	grace := graceSeconds(t.spec)
	if c := t.container(); c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		took, known := hookSeconds(c.Lifecycle.PreStop)
		if !known {
			return grace, fmt.Sprintf("lifecycle.preStop of container %s takes a time that nobody knows beforehand, and takes it off terminationGracePeriodSeconds (%d): "+
				"what is copied when a pod terminates may come too late; write preStop as sleep, or make the grace longer by what the hook takes", c.Name, grace)
		}
		if took > 0 {
			return max(grace-took, min(grace, leastGrace)), ""
		}
	}
	return grace, ""
}

// hookSeconds is how long a hook takes, where it plainly sleeps.
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

// hooksShare says what of a grace is preStop's.
func hooksShare(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf(", of which preStop takes %d", seconds)
}
