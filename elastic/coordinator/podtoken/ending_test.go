package podtoken

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestContainerEnd(t *testing.T) {
	killed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationContainer: "train"}},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever},
		Status: corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{{Name: "logs", RestartCount: 9, LastTerminationState: killed}, {Name: "train"}},
		},
	}
	if got := containerEnd(pod); got != "" {
		t.Errorf("a container that runs since it was made: %q", got)
	}
	pod.Status.ContainerStatuses[1].LastTerminationState, pod.Status.ContainerStatuses[1].RestartCount = killed, 2
	if got := containerEnd(pod); got != "OOMKilled, exit code 137, restart 2" {
		t.Errorf("%q", got)
	}
	if got := charged(pod); !strings.Contains(got, "does not count") {
		t.Errorf("%q", got)
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if got := charged(pod); !strings.Contains(got, "backoffLimit") {
		t.Errorf("%q", got)
	}
}
