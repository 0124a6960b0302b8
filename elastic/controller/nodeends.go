package controller

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

// nodeEnds says why a node's kubelet may be ending pods that nobody deletes; cause is empty where it has no reason to.
func nodeEnds(node *corev1.Node) (cause, message string) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && strings.Contains(strings.ToLower(c.Message), shuttingDown) {
			return v1alpha1.CauseNodeShutdown, fmt.Sprintf("node %s reports: %s", node.Name, c.Message)
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
