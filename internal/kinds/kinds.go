// Package kinds describes each kind of training job to Holdfast: the pods of an object, how one pod is replaced without
// the restart policy of the kind, what became of the object, and the write that makes it fail. It takes objects and
// pods, and returns values and patches. An object that Holdfast cannot support is refused with the path of the field
// and a remedy.
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

// Kind is a kind of job. None of its methods keeps or changes what it is given, but Admit the object under admission.
type Kind interface {
	// GroupVersionKind and Resource name it to the API server.
	GroupVersionKind() schema.GroupVersionKind
	Resource() string
	// Read returns the pods of an object. With refusals, which say why Holdfast cannot keep it alive, the roles are those that
	// could be read.
	Read(obj *unstructured.Unstructured) (Job, field.ErrorList)
	// Admit writes on an object under admission what its replacements need beside the stamps on its templates, and returns
	// warnings: what will act otherwise than its user may expect.
	Admit(obj *unstructured.Unstructured, a Admission) (warnings []string)
	// Place is the position that the kind's controller gave to a pod when it created it; ok is false for a pod of another
	// kind. It is called at the pod's creation: later, labels may have been removed. A number that the controller did not
	// write is -1.
	Place(pod *corev1.Pod) (p Place, ok bool)
	// Release is the change of a pod's metadata after which its end, however it comes, makes the kind's controller create
	// another one and do nothing else. maker is the batch Job that created the pod, as a cache has it; nil: another kind did, or it
	// is gone.
	Release(pod *corev1.Pod, maker *unstructured.Unstructured) Release
	// State is what became of the object.
	State(obj *unstructured.Unstructured) State
	// Fail is the write that makes the object fail, with the reason on it. It is empty where there is nothing to write.
	Fail(obj *unstructured.Unstructured, f Failure) Write
}

// Job is an object as its kind reads it.
type Job struct {
	// Roles are in the order of their slots.
	Roles []Role
}

// Role is a part of a job whose pods come from one template.
type Role struct {
	Name string
	// Template is where the pod template is, Pod what it has.
	Template *field.Path
	Pod      corev1.PodTemplateSpec
	// Count is where the number of pods is. They are Replicas times Each: a JobSet's replicated job creates Replicas Jobs
	// of Each pods; for all other kinds Replicas is 1.
	Count          *field.Path
	Replicas, Each int32
	// Before is true for a role that ends before training starts: its pods are no members, and stay as they are.
	Before bool
	// Container trains where neither an annotation nor the devices tell; "": the kind says nothing. At Admit it is the
	// container that was found.
	Container string
	// Scheduler places the pods: it is named in the template, or else written by the kind's controller. SchedulerPath is the
	// field that names it.
	Scheduler     string
	SchedulerPath *field.Path
	// Env are variables that the kind's controller sets in each container; a value that differs between pods, or is known later,
	// has ValueFrom.
	Env []corev1.EnvVar
	// steps lead to the template in the object: names of fields, and indexes of lists.
	steps []any
}

// Pods is the number of the role's pods.
func (r Role) Pods() int32 { return r.Replicas * r.Each }

// Members is the number of pods that are placed together.
func (j Job) Members() int32 {
	n := int64(0)
	for _, r := range j.Roles {
		if !r.Before {
			n += int64(r.Replicas) * int64(r.Each)
		}
	}
	return int32(min(n, math.MaxInt32))
}

// Slot is the slot of a member: slots are numbered through the roles.
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

// Admission is what Admit knows beside the object.
type Admission struct {
	// Job is what Read returned, with the container that was found in each role.
	Job Job
	// Old is the object before a change; nil: it is created.
	Old *unstructured.Unstructured
	// Minor is N of the API server's Kubernetes 1.N, 0 where it is not known.
	Minor int
}

// Place is the position of a pod in its job.
type Place struct {
	// Maker is the object of the kind that the pod was created for, Name its name.
	Maker types.UID
	Name  string
	Role  string
	// Replica is which of the role's Replicas it is in, Index its index there.
	Replica, Index int32
}

// Release is a change of a pod's metadata.
type Release struct {
	// Remove are labels, Annotate annotations.
	Remove   []string
	Annotate map[string]string
	// After is true where the new pod has the old one's name, so that it is created only once that is gone; else it is
	// created at once.
	After bool
}

// State is what became of an object.
type State struct {
	// Ended: it has ended, or will without a pod being created. Failed says how.
	Ended, Failed bool
	// Suspended: its user stopped it for now.
	Suspended bool
	// Final: its end is recorded on it, and nothing of that changes any more. Message is what it says then.
	Final   bool
	Message string
}

// Failure is why a job is made to fail.
type Failure struct {
	Reason, Message string
	At              time.Time
	// Now is false for some seconds in which pods may end by themselves, so that their logs stay; where the kind has no way
	// to wait for them it fails at once.
	Now bool
}

// Write is a patch of an object.
type Write struct {
	// Status is true for the subresource.
	Status bool
	Type   types.PatchType
	Patch  map[string]any
	// Evict is true where the kind leaves pods running that the failed object has.
	Evict bool
}

// all are the kinds that this package reads.
var all = []Kind{BatchJob{}, VolcanoJob{}, JobSet{}, PyTorchJob{}}

// Served are the kinds that Holdfast serves, where the cluster does.
func Served() []Kind { return slices.Clone(all) }

// PlaceOf returns the kind of a pod, and its position.
func PlaceOf(pod *corev1.Pod) (k Kind, p Place, ok bool) {
	for _, k := range all {
		if p, ok := k.Place(pod); ok {
			return k, p, true
		}
	}
	return nil, Place{}, false
}

// Title is what people call the kind: two of them have the kind Job.
func Title(k Kind) string {
	if gvk := k.GroupVersionKind(); gvk.GroupKind() == (VolcanoJob{}).GroupVersionKind().GroupKind() {
		return "Volcano Job"
	}
	return k.GroupVersionKind().Kind
}

// Of returns the kind of an object; ok is false where Holdfast does not know it.
func Of(kind schema.GroupKind) (k Kind, ok bool) {
	for _, k := range all {
		if k.GroupVersionKind().GroupKind() == kind {
			return k, true
		}
	}
	return nil, false
}

// CheckSize refuses more pods than a gang can have; otherwise is what else can be done.
func CheckSize(n int32, at *field.Path, otherwise string) field.ErrorList {
	if n <= v1alpha1.MaxMembers {
		return nil
	}
	return field.ErrorList{field.Invalid(at, n, fmt.Sprintf(
		"a gang has at most %d pods: request fewer, with more GPUs each, or %s", v1alpha1.MaxMembers, otherwise))}
}

// WithoutUs is the remedy that is always left.
const WithoutUs = "remove " + v1alpha1.AnnotationEnabled

// checkOwner refuses a part of an object of another kind. The annotation may have come from there.
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
