package webhook

import (
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// slots are those of one role: the value of AnnotationGangSlots.
type slots struct{ first, each, pods int32 }

func (s slots) String() string { return fmt.Sprintf("%d/%d/%d", s.first, s.each, s.pods) }

// parseSlots reads that value, as it is written here.
func parseSlots(text string) (s slots, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return slots{}, false
	}
	for i, into := range []*int32{&s.first, &s.each, &s.pods} {
		n, err := strconv.ParseUint(parts[i], 10, 31)
		if err != nil || n > v1alpha1.MaxMembers {
			return slots{}, false
		}
		*into = int32(n)
	}
	return s, s.String() == text && s.first+s.pods <= v1alpha1.MaxMembers
}

// at is the slot of a pod; ok is false where the role has no such pod.
func (s slots) at(p kinds.Place) (slot int32, ok bool) {
	if p.Replica < 0 || p.Index < 0 || p.Index >= s.each || p.Replica >= s.pods/s.each {
		return 0, false
	}
	return s.first + p.Replica*s.each + p.Index, true
}

// made is what a pod's controller says of it; kind is nil where no kind that Holdfast serves made the pod.
type made struct {
	kind  kinds.Kind
	place kinds.Place
	// slots are those of the pod's role and size is its gang's, by what admission of its job wrote on the template; known: they can be read.
	slots slots
	size  int32
	known bool
	// stamp is what pod admission writes on the pod. A pod without a slot is refused by checkPlace.
	stamp membership.Stamp
}

func madeBy(pod *corev1.Pod) (m made) {
	m.kind, m.place, _ = kinds.PlaceOf(pod)
	size := pod.Annotations[v1alpha1.AnnotationGangSize]
	n, sized := gangSize(size)
	m.size, m.slots, m.known = int32(n), slots{each: int32(n), pods: int32(n)}, sized
	if text, is := pod.Annotations[v1alpha1.AnnotationGangSlots]; is || !m.batch() {
		s, ok := parseSlots(text)
		m.slots, m.known = s, ok && sized
	}
	m.stamp = membership.Stamp{Gang: m.place.Name, Size: size, Role: m.place.Role}
	if m.known {
		if slot, ok := m.slots.at(m.place); ok {
			m.stamp.Slot = strconv.Itoa(int(slot))
		}
	}
	return m
}

// object is what people call the pod's job.
func (m made) object() string { return kinds.Title(m.kind) + " " + m.place.Name }

func (m made) batch() bool { return isBatch(m.kind) }

// checkPlace refuses a pod whose position is no slot of a gang of that size.
func (m made) checkPlace(pod *corev1.Pod) *field.Error {
	if !m.known {
		key := settings.MetadataAnnotations.Key(v1alpha1.AnnotationGangSlots)
		return field.Invalid(key, pod.Annotations[v1alpha1.AnnotationGangSlots], fmt.Sprintf(
			"must be as admission of %s wrote it on the pod template: delete the %s and create it again", m.object(), kinds.Title(m.kind)))
	}
	if slot, ok := m.slots.at(m.place); ok && slot < m.size {
		return nil
	}
	if m.batch() {
		key := batchv1.JobCompletionIndexAnnotation
		return field.Invalid(settings.MetadataAnnotations.Key(key), pod.Annotations[key], fmt.Sprintf(
			"a pod of this gang has an index from 0 to %d, and the Job's controller writes which: create the Job, and leave its pods to it", m.size-1))
	}
	return field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationGangSlots), m.slots.String(), fmt.Sprintf(
		"has no slot for pod %d.%d of role %q: the number of pods of %s is that of its creation, and its controller writes which pod is which; delete the %s and create it again to change it",
		m.place.Replica, m.place.Index, m.place.Role, m.object(), kinds.Title(m.kind)))
}
