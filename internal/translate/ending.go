package translate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// shuttingDown is what a kubelet says of its node, and of pods that it ended for it, from the moment that it was told of the shutdown
// (1.37: pkg/kubelet/nodeshutdown).
const shuttingDown = "node is shutting down"

// pressures are the conditions of a node under which its kubelet evicts pods.
var pressures = []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// NodeEnds says why a node's kubelet may be ending pods that nobody deletes; cause is empty where it has no reason to.
func NodeEnds(node *corev1.Node) (cause, message string) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && strings.Contains(strings.ToLower(c.Message), shuttingDown) {
			return v1alpha1.CauseNodeShutdown, fmt.Sprintf("node %s says: %s", node.Name, c.Message)
		}
	}
	for _, c := range node.Status.Conditions {
		for _, p := range pressures {
			if c.Type == p && c.Status == corev1.ConditionTrue {
				return v1alpha1.CauseEvicted, fmt.Sprintf("node %s has %s: %s", node.Name, c.Type, c.Message)
			}
		}
	}
	return "", ""
}

// training is the status of a pod's training container; nil: it has none yet.
func training(pod *corev1.Pod) *corev1.ContainerStatus {
	name := pod.Annotations[v1alpha1.AnnotationContainer]
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Name == name || name == "" && i == 0 {
			return c
		}
	}
	return nil
}

// ContainerEnd says how a pod's training container ended before it was started again; "": it was not, or that is not known yet.
func ContainerEnd(pod *corev1.Pod) string {
	c := training(pod)
	if c == nil || c.LastTerminationState.Terminated == nil {
		return ""
	}
	end := c.LastTerminationState.Terminated
	return fmt.Sprintf("%s, exit code %d, restart %d", end.Reason, end.ExitCode, max(1, c.RestartCount))
}

// Charged says what a container that ends whole costs the Job.
func Charged(pod *corev1.Pod) string {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		return "restartPolicy is OnFailure, so that each such restart counts against the Job's backoffLimit"
	}
	return "it is started again by the pod's restartPolicyRules, which the Job does not count; the kubelet waits longer before each further one"
}
