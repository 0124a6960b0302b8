// Package membership reads from a pod its gang, its slot and its owning Job, for all APIs that group pods. It
// promises to read only the pod's metadata, its scheduler's name and group, and its phase.
package membership

import (
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// GangOf names the Gang that a pod belongs to. A pod whose place another one takes, or that its Job left behind, belongs to none.
func GangOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	name := pod.Labels[v1alpha1.LabelGang]
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}, name != "" && !Replaced(pod) && !Orphaned(pod)
}

// Orphaned says whether a Job made the pod and none owns it any more: it was deleted with --cascade=orphan. Another Job of
// that name makes pods of its own.
func Orphaned(pod *corev1.Pod) bool {
	return pod.Labels[batchv1.ControllerUidLabel] != "" && OwningJob(pod) == nil
}

// Replaced says whether the pod was taken out of its gang because another one takes its place.
func Replaced(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelReplaced] == "true" }

// slotKeys carry a pod's index, each written by the controller that makes such pods.
var slotKeys = []string{batchv1.JobCompletionIndexAnnotation, "apps.kubernetes.io/pod-index"}

// GangSlot is the pod's index in its job, if its controller gave it one.
func GangSlot(pod *corev1.Pod) (int, bool) {
	for _, key := range slotKeys {
		for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
			if slot, err := strconv.Atoi(from[key]); err == nil && slot >= 0 {
				return slot, true
			}
		}
	}
	return 0, false
}

// OwningJob returns the batch Job that controls the pod.
func OwningJob(pod *corev1.Pod) *metav1.OwnerReference {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "Job" || ref.APIVersion != batchv1.SchemeGroupVersion.String() {
		return nil
	}
	return ref
}
