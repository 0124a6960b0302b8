package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// GangSize is how many members a pod says that its Gang has.
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

// Shown writes resources as people do in a pod: "4" or "500m" cores, "2Gi", "8" devices.
func Shown(r topology.Resources) map[string]string {
	shown := make(map[string]string, len(r))
	for name, n := range r {
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU:
			shown[name] = resource.NewMilliQuantity(n, resource.DecimalSI).String()
		case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			shown[name] = resource.NewQuantity(n, resource.BinarySI).String()
		default:
			shown[name] = strconv.FormatInt(n, 10)
		}
	}
	return shown
}

// PlacedStatus is the status of a gang whose members are all on nodes; nodes are by slot.
func PlacedStatus(nodes []string) v1alpha1.PlacementStatus {
	return v1alpha1.PlacementStatus{
		Placed:  true,
		Reason:  v1alpha1.ReasonPlaced,
		Message: fmt.Sprintf("%d of %d pods are on nodes", len(nodes), len(nodes)),
		Nodes:   slices.Clone(nodes),
	}
}

// RefusedStatus is the status of a gang that is not placed.
func RefusedStatus(r gang.Refusal) v1alpha1.PlacementStatus {
	s := v1alpha1.PlacementStatus{Reason: r.Reason, Message: r.Message, Wanted: int32(r.Wanted), Fits: int32(r.Fits)}
	if len(r.Excluded) > 0 {
		s.Excluded = make(map[string]int32, len(r.Excluded))
		for cause, nodes := range r.Excluded {
			s.Excluded[cause.String()] = int32(len(nodes))
		}
	}
	return s
}

// PreviewExcluded lists excluded nodes by why, the most first.
func PreviewExcluded(r gang.Refusal) []v1alpha1.PreviewExcluded {
	var all []v1alpha1.PreviewExcluded
	for cause, nodes := range r.Excluded {
		named := slices.Sorted(slices.Values(nodes))
		named = named[:min(len(named), v1alpha1.MaxPreviewNames)]
		all = append(all, v1alpha1.PreviewExcluded{Cause: cause.String(), Count: int32(len(nodes)), Nodes: named})
	}
	slices.SortFunc(all, func(a, b v1alpha1.PreviewExcluded) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause))
	})
	return all
}

// SamePlacement says whether two answers are the same, whenever they were given.
func SamePlacement(a, b v1alpha1.PlacementStatus) bool {
	a.ObservedAt, b.ObservedAt = metav1.MicroTime{}, metav1.MicroTime{}
	return a.Placed == b.Placed && a.Reason == b.Reason && a.Message == b.Message && a.Fits == b.Fits && a.Wanted == b.Wanted &&
		slices.Equal(a.Nodes, b.Nodes) && sameCounts(a.Excluded, b.Excluded) && apiequality.Semantic.DeepEqual(a.Held, b.Held)
}

func sameCounts(a, b map[string]int32) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Answer is what the scheduler said last, for gang.Assess.
func Answer(s *v1alpha1.PlacementStatus) gang.Answer {
	if s == nil {
		return gang.Answer{}
	}
	return gang.Answer{Placed: s.Placed, Reason: s.Reason, Message: s.Message}
}
