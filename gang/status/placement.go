package status

import (
	"fmt"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// Placed returns the placement status of a gang whose members are all on nodes; nodes are by slot.
func Placed(nodes []string) v1alpha1.PlacementStatus {
	return v1alpha1.PlacementStatus{
		Placed:  true,
		Reason:  v1alpha1.ReasonPlaced,
		Message: fmt.Sprintf("%d of %d pods are on nodes", len(nodes), len(nodes)),
		Nodes:   slices.Clone(Names(nodes)),
	}
}

// Refused returns the placement status of a gang that is not placed.
func Refused(r gang.Refusal) v1alpha1.PlacementStatus {
	s := v1alpha1.PlacementStatus{Reason: r.Reason, Message: r.Message, Wanted: int32(r.Wanted), Fits: int32(r.Fits)}
	if len(r.Excluded) > 0 {
		s.Excluded = make(map[string]int32, len(r.Excluded))
		for cause, nodes := range r.Excluded {
			s.Excluded[cause.String()] = int32(len(nodes))
		}
	}
	return s
}

// SamePlacement reports whether two answers are equal except for their time.
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
