package translate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestNodeEnds(t *testing.T) {
	// The messages are those of kubelet 1.37.
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
		"it shuts down":           {[]corev1.NodeCondition{fine, down}, v1alpha1.CauseNodeShutdown, "node n1 says: node is shutting down"},
		"it shuts down, and more": {[]corev1.NodeCondition{short, down}, v1alpha1.CauseNodeShutdown, "shutting down"},
		"it is not ready":         {[]corev1.NodeCondition{fine, broken}, "", ""},
		"it is short of memory":   {[]corev1.NodeCondition{short, ready}, v1alpha1.CauseEvicted, "node n1 has MemoryPressure: kubelet has insufficient memory available"},
		"its disk is full":        {[]corev1.NodeCondition{full, ready}, v1alpha1.CauseEvicted, "DiskPressure"},
		"nothing is known":        {nil, "", ""},
	} {
		cause, say := NodeEnds(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: c.conditions}})
		if cause != c.cause || !strings.Contains(say, c.say) || c.cause == "" && say != "" {
			t.Errorf("%s: %q, %q", name, cause, say)
		}
	}
}

func TestContainerEnd(t *testing.T) {
	killed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationContainer: "train"}}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "logs", RestartCount: 9, LastTerminationState: killed}, {Name: "train"}}}}
	if got := ContainerEnd(pod); got != "" {
		t.Errorf("a container that runs since it was made: %q", got)
	}
	pod.Status.ContainerStatuses[1].LastTerminationState, pod.Status.ContainerStatuses[1].RestartCount = killed, 2
	if got := ContainerEnd(pod); got != "OOMKilled, exit code 137, restart 2" {
		t.Errorf("%q", got)
	}
	if got := Charged(pod); !strings.Contains(got, "does not count") {
		t.Errorf("%q", got)
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if got := Charged(pod); !strings.Contains(got, "backoffLimit") {
		t.Errorf("%q", got)
	}
}
