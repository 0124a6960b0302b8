// Package kinds contains what Holdfast knows about each kind of training job. For an object of the kind it determines the pods, whether the
// job has ended, and the patch that makes the job fail. For a pod it determines the patch after which the kind's controller replaces the
// pod, counts no failure and does not apply the job's restart policy. The methods of a Kind take objects and pods, and return values and
// patches. An object that Holdfast cannot support is refused with the path of the field and a remedy.
package kinds

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Kind is a kind of job. Its methods do not store or change their arguments, except Admit, which changes the object under admission.
type Kind interface {
	// GroupVersionKind and Resource return the names of the kind at the API server.
	GroupVersionKind() schema.GroupVersionKind
	Resource() string
	// Read returns the pods of an object. If it also returns refusals, which say why Holdfast cannot support the object, the roles are
	// those that could be read.
	Read(obj *unstructured.Unstructured) (Job, field.ErrorList)
	// Admit writes on an object under admission what replacements need in addition to the stamps on the templates. It returns warnings
	// about settings that behave otherwise than a user may expect.
	Admit(obj *unstructured.Unstructured, a Admission) (warnings []string)
	// Place returns the position that the kind's controller gave to a pod at its creation; ok is false for a pod of another kind. It is
	// called when the pod is created, because labels may be removed later. A number that the controller did not write is -1.
	Place(pod *corev1.Pod) (p Place, ok bool)
	// Release returns the change of a pod's metadata after which the kind's controller only creates another pod when this one ends, however
	// it ends. maker is the batch Job that created the pod, from a cache; nil: another kind created it, or the Job is gone.
	Release(pod *corev1.Pod, maker *unstructured.Unstructured) Release
	// Restarts returns the field of the object against which its controller counts that a container of a pod was restarted whole;
	// "": it counts none.
	Restarts(pod *corev1.Pod) string
	// State returns what became of the object.
	State(obj *unstructured.Unstructured) State
	// Fail returns the write that makes the object fail, with the reason on it; empty: nothing must be written.
	Fail(obj *unstructured.Unstructured, f Failure) Write
}

// Job is the content of an object that all kinds have in common.
type Job struct {
	// Roles are ordered by their slots.
	Roles []Role
}

// Role is a part of a job whose pods come from one template.
type Role struct {
	Name string
	// Template is the path of the pod template, Pod its content.
	Template *field.Path
	Pod      corev1.PodTemplateSpec
	// Count is the path of the number of pods. That number is Replicas times Each: a JobSet's replicated job creates Replicas Jobs of Each
	// pods; for all other kinds Replicas is 1.
	Count          *field.Path
	Replicas, Each int32
	// Before is true for a role that ends before training starts. Its pods are no members and are not changed.
	Before bool
	// Container is the training container if neither an annotation nor the devices determine it; "": the kind does not determine it. In
	// Admit it is the container that was found.
	Container string
	// Scheduler places the pods: the template names it, or the kind's controller writes it. SchedulerPath is the field with its name.
	Scheduler     string
	SchedulerPath *field.Path
	// Env are variables that the kind's controller sets in each container. A variable with ValueFrom differs between pods or is known only
	// later.
	Env []corev1.EnvVar
	// steps is the path to the template in the object: names of fields, and indexes of lists.
	steps []any
}

// Pods returns the number of the role's pods.
func (r Role) Pods() int32 { return r.Replicas * r.Each }

// Members returns the number of pods that are placed together.
func (j Job) Members() int32 {
	n := int64(0)
	for _, r := range j.Roles {
		if !r.Before {
			n += int64(r.Replicas) * int64(r.Each)
		}
	}
	return int32(min(n, math.MaxInt32))
}

// Slot returns the slot of a member. Slots are numbered across all roles.
func (j Job) Slot(p Place) (slot int32, ok bool) {
	for _, r := range j.Roles {
		switch {
		case r.Before:
		case r.Name == p.Role:
			ok = p.Replica >= 0 && p.Replica < r.Replicas && p.Index >= 0 && p.Index < r.Each
			return slot + p.Replica*r.Each + p.Index, ok
		default:
			slot += r.Pods()
		}
	}
	return 0, false
}

// Admission has the arguments of Admit other than the object.
type Admission struct {
	// Job is what Read returned, with the container that was found in each role.
	Job Job
	// Old is the object before a change; nil: the object is created.
	Old *unstructured.Unstructured
	// Minor is N of the API server's Kubernetes 1.N; 0: unknown.
	Minor int
}

// Place is the position of a pod in its job.
type Place struct {
	// Maker is the UID of the object for which the pod was created, Name its name.
	Maker types.UID
	Name  string
	Role  string
	// Replica is the pod's number among the role's Replicas, Index its index within that replica.
	Replica, Index int32
}

// Release is a change of a pod's metadata.
type Release struct {
	// Remove are labels to remove, Annotate annotations to set.
	Remove   []string
	Annotate map[string]string
	// After is true if the new pod has the name of the old pod, so that it is created only after the old pod is gone. Otherwise it is
	// created at once.
	After bool
}

// State is what became of an object.
type State struct {
	// Ended: the object has ended, or will end without the creation of another pod. Failed says how.
	Ended, Failed bool
	// Suspended: a user has suspended the object.
	Suspended bool
	// Final: the object's status has its end, and does not change any more. Message is the text of that status.
	Final   bool
	Message string
}

// Failure is why a job is made to fail.
type Failure struct {
	Reason, Message string
	At              time.Time
	// Now is false for some seconds, in which pods may end by themselves, so that their logs stay. If the kind has no way to wait for its
	// pods, Fail fails the object at once.
	Now bool
}

// Write is a patch of an object.
type Write struct {
	// Status is true if the patch is for the subresource status.
	Status bool
	Type   types.PatchType
	Patch  map[string]any
	// Evict is true if pods of the failed object go on running, so that they must be evicted.
	Evict bool
}

// all are the kinds that this package reads.
var all = []Kind{BatchJob{}, VolcanoJob{}, JobSet{}, PyTorchJob{}}

// Served returns the kinds that Holdfast supports.
func Served() []Kind { return slices.Clone(all) }

// PlaceOf returns the kind and the position of a pod.
func PlaceOf(pod *corev1.Pod) (k Kind, p Place, ok bool) {
	for _, k := range all {
		if p, ok := k.Place(pod); ok {
			return k, p, true
		}
	}
	return nil, Place{}, false
}

// Title returns the name of the kind for users: two of them have the kind Job.
func Title(k Kind) string {
	if gvk := k.GroupVersionKind(); gvk.GroupKind() == (VolcanoJob{}).GroupVersionKind().GroupKind() {
		return "Volcano Job"
	}
	return k.GroupVersionKind().Kind
}

// Of returns the kind of an object; ok is false if Holdfast does not support the kind.
func Of(kind schema.GroupKind) (k Kind, ok bool) {
	for _, k := range all {
		if k.GroupVersionKind().GroupKind() == kind {
			return k, true
		}
	}
	return nil, false
}

// CheckSize refuses more pods than a gang can have; otherwise is a remedy in the error.
func CheckSize(n int32, at *field.Path, otherwise string) field.ErrorList {
	if n <= v1alpha1.MaxMembers {
		return nil
	}
	return field.ErrorList{field.Invalid(at, n, fmt.Sprintf(
		"a gang has at most %d pods: request fewer, with more GPUs each, or %s", v1alpha1.MaxMembers, otherwise))}
}

// WithoutUs is the remedy that every user has.
const WithoutUs = "remove " + v1alpha1.AnnotationEnabled

// checkOwner refuses an object that is a part of an object of another kind, from which its annotation may have been copied.
func checkOwner(obj *unstructured.Unstructured, templates []corev1.PodTemplateSpec, paths []*field.Path, but ...string) field.ErrorList {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil {
		return nil
	}
	for _, kind := range but {
		if ref.Kind == kind {
			return nil
		}
	}
	at := field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationEnabled)
	for i := range templates {
		if _, is := templates[i].Annotations[v1alpha1.AnnotationEnabled]; is {
			at = paths[i].Child("metadata", "annotations").Key(v1alpha1.AnnotationEnabled)
			break
		}
	}
	return field.ErrorList{field.Invalid(at, "true", fmt.Sprintf(
		"the %s is a part of %s %s (%s), and holdfast does not support that kind yet: remove the annotation there",
		obj.GetKind(), ref.Kind, ref.Name, ref.APIVersion))}
}
