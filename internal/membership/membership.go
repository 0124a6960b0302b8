// Package membership reads from a pod its gang and its place in the gang. It uses what pod admission wrote on the pod,
// and for groups of other APIs what those APIs wrote. Of a pod it reads only the metadata, the name of the scheduler,
// the scheduling group, one variable of the environment, and the phase.
package membership

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// JobVariable is the variable of a member's training container that holds the UID of the job it was made for. A pod's environment
// cannot change.
const JobVariable = "HOLDFAST_JOB_UID"

// Stamp is what pod admission writes on a member besides JobVariable. Nothing of it changes afterwards (policies holdfast-pod-keys and
// holdfast-binding-keys).
type Stamp struct {
	Gang string
	Size string
	Role string
	Slot string
}

// Keys are the label and the annotations of the stamp.
func (s Stamp) Keys() (labels, annotations map[string]string) {
	return map[string]string{v1alpha1.LabelGang: s.Gang}, map[string]string{
		v1alpha1.AnnotationGangSize: s.Size,
		v1alpha1.AnnotationGangRole: s.Role,
		v1alpha1.AnnotationGangSlot: s.Slot,
	}
}

// GangOf names the Gang that a pod belongs to. A pod whose place another one takes, or that its job left behind, belongs to none.
func GangOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	name := pod.Labels[v1alpha1.LabelGang]
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}, name != "" && !Replaced(pod) && !Orphaned(pod)
}

// Orphaned reports whether the pod was made for a job and nothing controls it any more: the job was deleted with --cascade=orphan.
// Another job of that name makes pods of its own.
func Orphaned(pod *corev1.Pod) bool {
	return metav1.GetControllerOfNoCopy(pod) == nil && JobUID(pod) != ""
}

// Replaced reports whether the pod was taken out of its gang because another one takes its place.
func Replaced(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelReplaced] == "true" }

// GangSlot is the pod's slot in its Gang, from 0; false: none was stamped.
func GangSlot(pod *corev1.Pod) (int, bool) {
	return index(pod.Annotations[v1alpha1.AnnotationGangSlot])
}

// GangRole is the pod's role in its Gang; "": none was stamped.
func GangRole(pod *corev1.Pod) string { return pod.Annotations[v1alpha1.AnnotationGangRole] }

// GangSize is how many pods the pod's Gang has. Whether they are too many is for the caller to say.
func GangSize(pod *corev1.Pod) (int, error) {
	value, ok := pod.Annotations[v1alpha1.AnnotationGangSize]
	if !ok {
		return 0, fmt.Errorf("pod %s has label %s but no annotation %s: it was not made through the webhook", pod.Name, v1alpha1.LabelGang, v1alpha1.AnnotationGangSize)
	}
	size, err := strconv.Atoi(value)
	if err != nil || size < 1 {
		return 0, fmt.Errorf("annotation %s of pod %s is %q: a number of pods from 1 is needed", v1alpha1.AnnotationGangSize, pod.Name, value)
	}
	return size, nil
}

// JobUID is the UID of the job that the pod was made for, also after the pod was taken out of it; "": the pod is no member.
func JobUID(pod *corev1.Pod) types.UID {
	for i := range pod.Spec.Containers {
		for _, e := range pod.Spec.Containers[i].Env {
			if e.Name == JobVariable {
				return types.UID(e.Value)
			}
		}
	}
	return ""
}

// MadeFor reports whether the pod was made for this job, and has not been left behind by it.
func MadeFor(pod *corev1.Pod, job types.UID) bool { return JobUID(pod) == job && !Orphaned(pod) }

// index reads a number from 0.
func index(value string) (int, bool) {
	n, err := strconv.Atoi(value)
	return n, err == nil && n >= 0
}
