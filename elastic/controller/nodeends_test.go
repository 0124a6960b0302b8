package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestNodeEnds(t *testing.T) {
	// The messages were written by the kubelet of Kubernetes 1.37.
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	down := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "node is shutting down"}
	broken := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "container runtime is down"}
	fine := corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"}
	short := corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasInsufficientMemory", Message: "kubelet has insufficient memory available"}
	full := corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure", Message: "kubelet has disk pressure"}
	for name, c := range map[string]struct {
		conditions []corev1.NodeCondition
		cause, say string
	}{
		"all is well":             {[]corev1.NodeCondition{fine, ready}, "", ""},
		"it shuts down":           {[]corev1.NodeCondition{fine, down}, v1alpha1.CauseNodeShutdown, "node n1 reports: node is shutting down"},
		"it shuts down, and more": {[]corev1.NodeCondition{short, down}, v1alpha1.CauseNodeShutdown, "shutting down"},
		"it is not ready":         {[]corev1.NodeCondition{fine, broken}, "", ""},
		"it is short of memory":   {[]corev1.NodeCondition{short, ready}, v1alpha1.CauseEvicted, "node n1 has MemoryPressure: kubelet has insufficient memory available"},
		"its disk is full":        {[]corev1.NodeCondition{full, ready}, v1alpha1.CauseEvicted, "DiskPressure"},
		"nothing is known":        {nil, "", ""},
	} {
		cause, say := nodeEnds(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: c.conditions}})
		if cause != c.cause || !strings.Contains(say, c.say) || c.cause == "" && say != "" {
			t.Errorf("%s: %q, %q", name, cause, say)
		}
	}
}
