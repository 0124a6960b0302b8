package settings

import (
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/protocol"
)

// MetadataAnnotations and TemplateAnnotations are where a job carries settings.
var (
	MetadataAnnotations = field.NewPath("metadata", "annotations")
	TemplateAnnotations = field.NewPath("spec", "template", "metadata", "annotations")
)

// Job is a batch Job as Holdfast sees it.
type Job struct {
	Settings Settings
	// Members is the number of pods that are placed together, as stamped at admission.
	Members int32
}

// JobSettings reads the settings of a Job; its template's annotations win over its own.
func JobSettings(job *batchv1.Job) (Settings, field.ErrorList) {
	return ParseSettings(
		Annotated{MetadataAnnotations, job.Annotations},
		Annotated{TemplateAnnotations, job.Spec.Template.Annotations})
}

// PodSettings reads the settings of a pod.
func PodSettings(pod *corev1.Pod) (Settings, field.ErrorList) {
	return ParseSettings(Annotated{MetadataAnnotations, pod.Annotations})
}

// AdmittedJob reads a Job that was opted in when it was created; ok is false for any other. The template
// decides, because it cannot change afterwards and all pods come from it.
func AdmittedJob(job *batchv1.Job) (j Job, ok bool) {
	size := job.Spec.Template.Annotations[v1alpha1.AnnotationGangSize]
	members, err := strconv.ParseInt(size, 10, 32)
	if err != nil || len(size) > maxValue || members < 1 || members > v1alpha1.MaxMembers {
		return Job{}, false
	}
	s, errs := ParseSettings(Annotated{TemplateAnnotations, job.Spec.Template.Annotations})
	if len(errs) > 0 || !s.Enabled {
		return Job{}, false
	}
	if s.Observe && job.Spec.Parallelism != nil { // which people may change, as nothing hangs on it
		members = min(int64(*job.Spec.Parallelism), v1alpha1.MaxMembers)
	}
	return Job{Settings: s, Members: int32(members)}, true
}

// PinsOfJob are the steps that a Job's own annotation pins, which may change at any time; one that cannot be read, or is past
// its limit, got past admission and pins nothing.
func PinsOfJob(job *batchv1.Job) []protocol.Mark {
	if value := job.Annotations[v1alpha1.AnnotationPinnedCheckpoints]; len(value) <= maxValue {
		pins, _ := parsePins(value)
		return pins
	}
	return nil
}

// PinWishOfJob is the number of the newest wish that ckpt pin or unpin wrote on a Job; 0: none did.
func PinWishOfJob(job *batchv1.Job) int64 {
	return positive(job.Annotations[v1alpha1.AnnotationPinWish])
}

// OfAdmittedJob are the annotations of the template that AdmittedJob reads; nil: it was not admitted.
func OfAdmittedJob(job *batchv1.Job) map[string]string {
	if _, ok := AdmittedJob(job); !ok {
		return nil
	}
	read := map[string]string{}
	for key, value := range job.Spec.Template.Annotations {
		if IsUserKey(key) || key == v1alpha1.AnnotationGangSize {
			read[key] = value
		}
	}
	return read
}
