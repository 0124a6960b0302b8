// Package membership reads from a pod its gang and its place in the gang. For a gang of Holdfast it reads what pod
// admission wrote on the pod, and for a group of another API what users and controllers of that API wrote. Of a pod the
// package reads only the metadata, the name of the scheduler, the scheduling group, one variable of the environment,
// and the phase.
package membership

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// JobVariable is the variable of a member's training container with the UID of the job for which the pod was created. A pod's environment
// cannot change.
const JobVariable = "HOLDFAST_JOB_UID"

// Stamp is what pod admission writes on a member in addition to JobVariable. Policies (holdfast-pod-keys and holdfast-binding-keys) prevent
// later changes.
type Stamp struct {
	Gang string
	Size string
	Role string
	Slot string
}

// Keys returns the stamp as a label and annotations.
func (s Stamp) Keys() (labels, annotations map[string]string) {
	return map[string]string{v1alpha1.LabelGang: s.Gang}, map[string]string{
		v1alpha1.AnnotationGangSize: s.Size,
		v1alpha1.AnnotationGangRole: s.Role,
		v1alpha1.AnnotationGangSlot: s.Slot,
	}
}

// GangOf returns the Gang that a pod belongs to. A pod that was replaced, or whose job was deleted without it, belongs to none.
func GangOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	name := pod.Labels[v1alpha1.LabelGang]
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}, name != "" && !Replaced(pod) && !Orphaned(pod)
}

// Orphaned reports whether the pod was created for a job and has no controller any more: the job was deleted with --cascade=orphan. Another
// job of that name creates pods of its own.
func Orphaned(pod *corev1.Pod) bool {
	return metav1.GetControllerOfNoCopy(pod) == nil && JobUID(pod) != ""
}

// Replaced reports whether the pod was taken out of its gang because another pod replaces it.
func Replaced(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelReplaced] == "true" }

// GangSlot returns the pod's slot in its Gang, from 0; false: none was stamped.
func GangSlot(pod *corev1.Pod) (int, bool) {
	return index(pod.Annotations[v1alpha1.AnnotationGangSlot])
}

// GangRole returns the pod's role in its Gang; "": none was stamped.
func GangRole(pod *corev1.Pod) string { return pod.Annotations[v1alpha1.AnnotationGangRole] }

// GangSize returns the number of pods of the pod's Gang. The caller decides whether that is too many.
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

// GangMin returns the least number of pods with which the pod's Gang goes on; its size, if all are needed.
func GangMin(pod *corev1.Pod, size int) int {
	if n, err := strconv.Atoi(pod.Annotations[v1alpha1.AnnotationGangMin]); err == nil && n >= 1 && n < size {
		return n
	}
	return size
}

// GangUnit returns of how many consecutive slots the blocks are with which the pod's Gang goes on, if it does with fewer pods than all.
func GangUnit(pod *corev1.Pod, size int) int {
	if n, err := strconv.Atoi(pod.Annotations[v1alpha1.AnnotationGangUnit]); err == nil && n >= 1 && size%n == 0 {
		return n
	}
	return 1
}

// JobUID returns the UID of the job for which the pod was created, also after the pod was released from the job; "": the pod is no member.
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

// MadeFor reports whether the pod was created for this job and is not orphaned.
func MadeFor(pod *corev1.Pod, job types.UID) bool { return JobUID(pod) == job && !Orphaned(pod) }

// index parses a number from 0.
func index(value string) (int, bool) {
	n, err := strconv.Atoi(value)
	return n, err == nil && n >= 0
}
