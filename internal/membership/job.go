package membership

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What controllers of other objects write on their pods. Admission reads it and writes stamps on members; all later readers use the stamps.
// Pods that admission does not stamp, such as those of groups of other APIs and of observed Jobs, have only this.

// OwningJob returns the batch Job that controls the pod.
func OwningJob(pod *corev1.Pod) *metav1.OwnerReference {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "Job" || ref.APIVersion != batchv1.SchemeGroupVersion.String() {
		return nil
	}
	return ref
}

// indexKeys have a pod's index. Each is written by one kind of controller.
var indexKeys = []string{batchv1.JobCompletionIndexAnnotation, "apps.kubernetes.io/pod-index", volcanoIndex}

// Index returns the pod's index among the pods of its controller, if that controller numbers them.
func Index(pod *corev1.Pod) (int, bool) {
	for _, key := range indexKeys {
		for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
			if n, ok := index(from[key]); ok {
				return n, true
			}
		}
	}
	return 0, false
}

// perPod are labels that differ between pods of one template.
var perPod = []string{
	batchv1.JobCompletionIndexAnnotation,
	"apps.kubernetes.io/pod-index",
	"statefulset.kubernetes.io/pod-name",
	volcanoIndex,
	"training.kubeflow.org/replica-index",
	"jobset.sigs.k8s.io/job-index",
	"jobset.sigs.k8s.io/job-global-index",
	"jobset.sigs.k8s.io/job-group-index",
	"jobset.sigs.k8s.io/job-restart-attempt",
	jobSetJob,
	"ray.io/worker-group-replica-index",
	"ray.io/replica-host-index",
}

// jobSetJob is the label with the Job of a JobSet.
const jobSetJob = "jobset.sigs.k8s.io/job-key"

// perJob are labels that differ between pods of different Jobs. The Jobs of one JobSet may have one template.
var perJob = []string{"job-name", batchv1.JobNameLabel, "controller-uid", batchv1.ControllerUidLabel}

// IsPerPod reports whether a label of a pod differs between pods of one template. Rules that select pods of a gang do not use such
// labels.
func IsPerPod(pod *corev1.Pod, label string) bool {
	return slices.Contains(perPod, label) || pod.Labels[jobSetJob] != "" && slices.Contains(perJob, label)
}
