// Package slim reduces objects for caches, because any tenant may write an object, of any size. Each reader of a cache
// finds all fields that it reads. At most some KiB of an object are kept. A reduced object must never be written back:
// an update would erase the dropped fields.
package slim

import (
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// mostKeys is how many labels of a Job's selector are kept. A pod that lacks one of them is not the Job's.
const mostKeys = 16

// Job is a transform for a cache. Of a Job it keeps identity, size, suspension, the labels of its selector, and conditions; of an admitted
// Job also the annotations and the label that package settings reads, and whether its pods request devices.
func Job(obj any) (any, error) {
	job, ok := obj.(*batchv1.Job)
	if !ok {
		return obj, nil
	}
	kept := &batchv1.Job{TypeMeta: job.TypeMeta, ObjectMeta: identity(&job.ObjectMeta)}
	kept.Spec.Parallelism, kept.Spec.Suspend = job.Spec.Parallelism, job.Spec.Suspend
	kept.Spec.Template.Annotations = settings.OfAdmittedJob(job)
	if kept.Spec.Template.Annotations != nil {
		settings.KeepQueue(kept, job)
		settings.KeepLive(kept, job)
		kept.Spec.Template.Spec.Containers = settings.KeepDevices(&job.Spec.Template.Spec)
	}
	if job.Spec.Selector != nil {
		kept.Spec.Selector = &metav1.LabelSelector{MatchLabels: some(job.Spec.Selector.MatchLabels)}
	}
	kept.Status.Conditions = job.Status.Conditions
	return kept, nil
}

// some returns the first labels of a selector, without the gang's label, which stays on a pod.
func some(labels map[string]string) map[string]string {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(labels)), func(k string) bool { return k == v1alpha1.LabelGang })
	kept := map[string]string{}
	for _, k := range keys[:min(len(keys), mostKeys)] {
		kept[k] = labels[k]
	}
	return kept
}
