package podtoken

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// trainingStatus is the status of a pod's training container; nil: it has none yet.
func trainingStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	name := pod.Annotations[v1alpha1.AnnotationContainer]
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Name == name || name == "" && i == 0 {
			return c
		}
	}
	return nil
}

// containerEnd describes how a pod's training container ended before its restart; "": it was not restarted, or that is unknown yet.
func containerEnd(pod *corev1.Pod) string {
	c := trainingStatus(pod)
	if c == nil || c.LastTerminationState.Terminated == nil {
		return ""
	}
	end := c.LastTerminationState.Terminated
	return fmt.Sprintf("%s, exit code %d, restart %d", end.Reason, end.ExitCode, max(1, c.RestartCount))
}

// charged describes what the restart of a whole container counts against.
func charged(pod *corev1.Pod) string {
	var counts string
	if k, _, ok := kinds.PlaceOf(pod); ok {
		if field := k.Restarts(pod); field != "" {
			counts = fmt.Sprintf("each such restart counts against %s of the %s", field, kinds.Title(k))
		}
	}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		return cmp.Or(counts, "restartPolicy of the pod has it started again")
	}
	return "it is started again by the pod's restartPolicyRules, and " + cmp.Or(counts, "the job does not count that") +
		"; the kubelet waits longer before each further one"
}
