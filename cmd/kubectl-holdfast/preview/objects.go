package preview

import (
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Plain is the Job of a file without a key of ours: what it would be without Holdfast.
func Plain(job *unstructured.Unstructured) *unstructured.Unstructured {
	plain := job.DeepCopy()
	for _, fields := range [][]string{{"metadata", "annotations"}, {"metadata", "labels"},
		{"spec", "template", "metadata", "annotations"}, {"spec", "template", "metadata", "labels"}} {
		values, found, err := unstructured.NestedMap(plain.Object, fields...)
		if err != nil || !found {
			continue // what is malformed the API server refuses
		}
		for key := range values {
			if strings.HasPrefix(key, v1alpha1.Prefix) {
				unstructured.RemoveNestedField(plain.Object, append(fields, key)...)
			}
		}
	}
	return plain
}

// PodOf is the pod of a slot, as the Job controller makes it of a Job that the API server answered.
func PodOf(job *batchv1.Job, slot int) *corev1.Pod {
	t := job.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   job.Namespace,
		Name:        podName(job.Name, slot),
		Labels:      t.Labels,
		Annotations: t.Annotations,
		Finalizers:  []string{batchv1.JobTrackingFinalizer},
		// blockOwnerDeletion, which the Job controller sets as well, takes a right that people do not need otherwise.
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: job.Name, UID: job.UID, Controller: ptr.To(true)},
		},
	}, Spec: t.Spec}
	if job.Spec.CompletionMode != nil && *job.Spec.CompletionMode == batchv1.IndexedCompletion {
		index := strconv.Itoa(slot)
		pod.Labels = with(pod.Labels, batchv1.JobCompletionIndexAnnotation, index)
		pod.Annotations = with(pod.Annotations, batchv1.JobCompletionIndexAnnotation, index)
		pod.Spec.Hostname = fmt.Sprintf("%s-%d", job.Name, slot)
	}
	return pod
}

// Members are all pods of a gang, made of the first one as the API server answered it; none where they are more than one
// question may hold, and then unasked says so: an answer about a part of a gang would be none.
func Members(first *corev1.Pod, job *batchv1.Job) (pods []corev1.Pod, unasked string) {
	n := int(ptr.Deref(job.Spec.Parallelism, 1))
	if n > v1alpha1.MaxPreviewPods {
		return nil, fmt.Sprintf("the Job has %d pods, a preview takes at most %d", n, v1alpha1.MaxPreviewPods)
	}
	pods = make([]corev1.Pod, n)
	for slot := range pods {
		pod := first.DeepCopy()
		pod.ManagedFields = nil
		pod.Name, pod.UID = podName(job.Name, slot), types.UID(fmt.Sprintf("%s-%d", first.UID, slot))
		pod.Labels = with(pod.Labels, batchv1.JobCompletionIndexAnnotation, strconv.Itoa(slot))
		pod.Annotations = with(pod.Annotations, batchv1.JobCompletionIndexAnnotation, strconv.Itoa(slot))
		pod.Annotations = with(pod.Annotations, v1alpha1.AnnotationGangSlot, strconv.Itoa(slot))
		pod.Spec.Hostname = fmt.Sprintf("%s-%d", job.Name, slot)
		pods[slot] = *pod
	}
	return pods, ""
}

func podName(job string, slot int) string { return fmt.Sprintf("%s-%d-prvw", job, slot) }

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
