package membership

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the controllers of other objects write on their pods. Admission reads it, to stamp it on members; all that comes after
// admission reads the stamps. Pods that admission leaves as they are, of groups of other APIs and of Jobs that are only watched,
// have nothing else.

// OwningJob returns the batch Job that controls the pod.
func OwningJob(pod *corev1.Pod) *metav1.OwnerReference {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "Job" || ref.APIVersion != batchv1.SchemeGroupVersion.String() {
		return nil
	}
	return ref
}

// indexKeys carry a pod's index, each written by the controller that makes such pods.
var indexKeys = []string{batchv1.JobCompletionIndexAnnotation, "apps.kubernetes.io/pod-index", volcanoIndex}

// Index is the pod's index among those that its controller made, if that numbers them.
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

// perPod are labels by which controllers tell pods of one template apart.
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

// jobSetJob names one of a JobSet's Jobs.
const jobSetJob = "jobset.sigs.k8s.io/job-key"

// perJob are labels by which Jobs tell their pods from those of other Jobs. Jobs of one JobSet may have one template.
var perJob = []string{"job-name", batchv1.JobNameLabel, "controller-uid", batchv1.ControllerUidLabel}

// IsPerPod reports whether a label of a pod differs between pods of one template. Rules that select pods of a gang do not use such
// labels.
func IsPerPod(pod *corev1.Pod, label string) bool {
	return slices.Contains(perPod, label) || pod.Labels[jobSetJob] != "" && slices.Contains(perJob, label)
}
