package settings

import (
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/protocol"
)

// MetadataAnnotations and TemplateAnnotations are the paths of a job's annotations with settings.
var (
	MetadataAnnotations = field.NewPath("metadata", "annotations")
	TemplateAnnotations = field.NewPath("spec", "template", "metadata", "annotations")
)

// Job has the settings of a job of any kind.
type Job struct {
	Settings Settings
	// Members is the number of pods that are placed together, as admission stamped it.
	Members int32
	// Min is the least number of them with which the job goes on, as admission stamped it; 0: all.
	Min int32
	// Unit: it then goes on with whole blocks of so many consecutive pods, as admission stamped it; 0: 1.
	Unit int32
}

// QueueLabel is the label of a job's object that names its queue of Kueue.
const QueueLabel = "kueue.x-k8s.io/queue-name"

// Queue returns a job's queue of Kueue; "": none.
func Queue(job metav1.Object) string { return job.GetLabels()[QueueLabel] }

// JobSettings reads the settings of a Job. Its template's annotations override its own.
func JobSettings(job *batchv1.Job) (Settings, field.ErrorList) {
	return ParseSettings(
		Annotated{MetadataAnnotations, job.Annotations},
		Annotated{TemplateAnnotations, job.Spec.Template.Annotations})
}

// PodSettings reads the settings of a pod.
func PodSettings(pod *corev1.Pod) (Settings, field.ErrorList) {
	return ParseSettings(Annotated{MetadataAnnotations, pod.Annotations})
}

// AdmittedJob reads a batch Job that was opted in when it was created. ok is false for any other Job, and for a Job that is a part of an
// object of another kind, in whose gang its pods are.
func AdmittedJob(job *batchv1.Job) (j Job, ok bool) {
	if kinds.IsChild(job) {
		return Job{}, false
	}
	j, ok = AdmittedTemplate(job.Spec.Template.Annotations)
	if ok && j.Settings.Observe && job.Spec.Parallelism != nil { // users may change it, because nothing depends on it
		j.Members = min(*job.Spec.Parallelism, v1alpha1.MaxMembers)
	}
	return j, ok
}

// AdmittedTemplate reads a job's settings from the annotations of one of its pod templates, of any role. ok is false if the job was not
// opted in when it was created. The template decides, because it cannot change later and pods are created from it.
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
	j = Job{Settings: s, Members: int32(members), Min: stampedMin(annotations, int32(members))}
	if j.Min > 0 {
		j.Unit = stamped(annotations, v1alpha1.AnnotationGangUnit, j.Min)
	}
	return j, true
}

// KeepQueue copies a job's label with its queue.
func KeepQueue(kept, from metav1.Object) {
	if queue := Queue(from); queue != "" {
		kept.SetLabels(map[string]string{QueueLabel: queue})
	}
}

// KeptOfMetadata returns those annotations of a job's own metadata that are read after its admission: whether it is opted in, and what
// KeepLive copies. nil: none.
func KeptOfMetadata(annotations map[string]string) map[string]string {
	from, kept := &metav1.ObjectMeta{Annotations: annotations}, &metav1.ObjectMeta{}
	if OptedIn(from) {
		kept.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true"}
	}
	KeepLive(kept, from)
	return kept.Annotations
}

// KeepLive copies those annotations of a job's own metadata that may change at any time: its pins, the number of the request that set them,
// the newest requests of a node check and to try struck sizes again, and that it wants no check.
func KeepLive(kept, from metav1.Object) {
	SetPins(kept, PinsOfJob(from))
	SetPinWish(kept, PinWishOfJob(from))
	SetCheckWish(kept, CheckWishOfJob(from))
	if n := RetrySizesOfJob(from); n > 0 {
		setAnnotation(kept, v1alpha1.AnnotationRetrySizes, strconv.FormatInt(n, 10))
	}
	if NodeCheckOff(from) {
		setAnnotation(kept, v1alpha1.AnnotationNodeCheck, v1alpha1.NodeCheckOff)
	}
}

// NodeCheckOff reports whether a job's own annotation says that it wants no node check, whatever it was created with.
func NodeCheckOff(job metav1.Object) bool {
	return job.GetAnnotations()[v1alpha1.AnnotationNodeCheck] == v1alpha1.NodeCheckOff
}

// OptedIn reports whether an object's own annotation opts it in at present. Its templates show whether it was admitted.
func OptedIn(job metav1.Object) bool {
	return job.GetAnnotations()[v1alpha1.AnnotationEnabled] == "true"
}

// PinsOfJob returns the steps that a job's own annotation pins; it may change at any time. If the annotation cannot be parsed, or exceeds
// its limit, it pins nothing.
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

// RetrySizesOfJob returns the number of a job's newest request to try struck sizes again; 0: there was none.
func RetrySizesOfJob(job metav1.Object) int64 {
	return positive(job.GetAnnotations()[v1alpha1.AnnotationRetrySizes])
}

// CheckWish is a request of a node check; the zero value: none.
type CheckWish struct {
	Number int64
	// Now: ranks are restarted for it.
	Now bool
}

// CheckWishOfJob returns a job's newest request of a node check.
func CheckWishOfJob(job metav1.Object) (w CheckWish) {
	w.Number, w.Now = parseCheckWish(job.GetAnnotations()[v1alpha1.AnnotationCheckWish])
	return w
}

// SetCheckWish writes a job's newest request of a node check; the zero value removes the annotation.
func SetCheckWish(job metav1.Object, w CheckWish) {
	text := ""
	if w.Number != 0 {
		text = strconv.FormatInt(w.Number, 10)
	}
	if w.Now && text != "" {
		text += "," + v1alpha1.CheckNow
	}
	setAnnotation(job, v1alpha1.AnnotationCheckWish, text)
}

// parseCheckWish parses a number, perhaps with CheckNow; 0: the text is none.
func parseCheckWish(text string) (number int64, now bool) {
	text, word, more := strings.Cut(text, ",")
	if more && word != v1alpha1.CheckNow {
		return 0, false
	}
	number = positive(text)
	return number, more && number > 0
}

// OfAdmittedJob returns the annotations of the template that AdmittedJob reads; nil: the Job was not admitted.
func OfAdmittedJob(job *batchv1.Job) map[string]string {
	if _, ok := AdmittedJob(job); !ok {
		return nil
	}
	read := map[string]string{}
	for key, value := range job.Spec.Template.Annotations {
		if IsUserKey(key) || key == v1alpha1.AnnotationGangSize || key == v1alpha1.AnnotationGangMin || key == v1alpha1.AnnotationGangUnit {
			read[key] = value
		}
	}
	return read
}
