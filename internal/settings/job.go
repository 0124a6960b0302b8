package settings

import (
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/protocol"
)

// MetadataAnnotations and TemplateAnnotations are where a job carries settings.
var (
	MetadataAnnotations = field.NewPath("metadata", "annotations")
	TemplateAnnotations = field.NewPath("spec", "template", "metadata", "annotations")
)

// Job is a job of any kind as Holdfast sees it.
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

// AdmittedJob reads a batch Job that was opted in when it was created; ok is false for any other, and for one that is a part of
// an object of another kind, whose gang its pods are in.
func AdmittedJob(job *batchv1.Job) (j Job, ok bool) {
	if kinds.IsChild(job) {
		return Job{}, false
	}
	j, ok = AdmittedTemplate(job.Spec.Template.Annotations)
	if ok && j.Settings.Observe && job.Spec.Parallelism != nil { // which people may change, as nothing hangs on it
		j.Members = min(*job.Spec.Parallelism, v1alpha1.MaxMembers)
	}
	return j, ok
}

// AdmittedTemplate reads a job by the annotations of one of its pod templates, those of any role; ok is false where it was not opted
// in when it was created. The template decides, because it cannot change afterwards and pods come from it.
func AdmittedTemplate(annotations map[string]string) (j Job, ok bool) {
	size := annotations[v1alpha1.AnnotationGangSize]
	members, err := strconv.ParseInt(size, 10, 32)
	if err != nil || len(size) > maxValue || members < 1 || members > v1alpha1.MaxMembers {
		return Job{}, false
	}
	s, errs := ParseSettings(Annotated{TemplateAnnotations, annotations})
	if len(errs) > 0 || !s.Enabled {
		return Job{}, false
	}
	return Job{Settings: s, Members: int32(members)}, true
}

// KeptOfMetadata are the annotations of a job's own metadata that are read after its admission: whether it is opted in, its pins, and
// the number of the wish that they are. nil: none.
func KeptOfMetadata(annotations map[string]string) map[string]string {
	from, kept := &metav1.ObjectMeta{Annotations: annotations}, &metav1.ObjectMeta{}
	if OptedIn(from) {
		kept.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true"}
	}
	SetPins(kept, PinsOfJob(from))
	SetPinWish(kept, PinWishOfJob(from))
	return kept.Annotations
}

// OptedIn says whether an object's own annotation opts it in now. Whether it was admitted its templates say.
func OptedIn(job metav1.Object) bool {
	return job.GetAnnotations()[v1alpha1.AnnotationEnabled] == "true"
}

// PinsOfJob are the steps that a job's own annotation pins, which may change at any time; one that cannot be read, or is past
// its limit, got past admission and pins nothing.
func PinsOfJob(job metav1.Object) []protocol.Mark {
	if value := job.GetAnnotations()[v1alpha1.AnnotationPinnedCheckpoints]; len(value) <= maxValue {
		pins, _ := parsePins(value)
		return pins
	}
	return nil
}

// PinWishOfJob returns the number of a job's newest request to pin or unpin; 0: there was none.
func PinWishOfJob(job metav1.Object) int64 {
	return positive(job.GetAnnotations()[v1alpha1.AnnotationPinWish])
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
