package podtoken

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
}

// TestCharged: the restart of a whole container names the field of the pod's own kind of job that counts it.
func TestCharged(t *testing.T) {
	made := func(apiVersion, kind string, policy corev1.RestartPolicy) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Annotations:     map[string]string{"volcano.sh/task-spec": "worker"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "train", Controller: ptr.To(true)}},
			},
			Spec: corev1.PodSpec{RestartPolicy: policy},
		}
	}
	inJobSet := made("batch/v1", "Job", corev1.RestartPolicyOnFailure)
	inJobSet.Labels = map[string]string{"jobset.sigs.k8s.io/jobset-uid": "1", "jobset.sigs.k8s.io/replicatedjob-name": "workers"}
	const rules, later = "it is started again by the pod's restartPolicyRules, and ", "; the kubelet waits longer before each further one"
	for want, pod := range map[string]*corev1.Pod{
		rules + "the job does not count that" + later:                                                            made("batch/v1", "Job", corev1.RestartPolicyNever),
		"each such restart counts against spec.backoffLimit of the Job":                                          made("batch/v1", "Job", corev1.RestartPolicyOnFailure),
		"each such restart counts against spec.runPolicy.backoffLimit of the PyTorchJob":                         made("kubeflow.org/v1", "PyTorchJob", corev1.RestartPolicyAlways),
		"each such restart counts against spec.replicatedJobs[workers].template.spec.backoffLimit of the JobSet": inJobSet,
		rules + "each such restart counts against spec.tasks[worker].maxRetry (event TaskFailed) of the Volcano Job" + later: made(
			"batch.volcano.sh/v1alpha1", "Job", corev1.RestartPolicyNever),
	} {
		if got := charged(pod); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
