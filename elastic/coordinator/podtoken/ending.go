package podtoken

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
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

// charged describes what the end of a whole container costs the Job.
func charged(pod *corev1.Pod) string {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		return "restartPolicy is OnFailure, so each such restart counts against the Job's backoffLimit"
	}
	return "it is started again by the pod's restartPolicyRules, which the Job does not count; the kubelet waits longer before each further one"
}
