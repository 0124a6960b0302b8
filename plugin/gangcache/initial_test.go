package gangcache

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestStampsOfBothNames: a scheduler that follows one of an earlier version knows by that one's stamps which gangs never were whole.
func TestStampsOfBothNames(t *testing.T) {
	then := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for key, want := range map[string]bool{v1alpha1.AnnotationInitialPlacement: true, "holdfast.dev/forming": true, "holdfast.dev/other": false} {
		pod := &v1.Pod{}
		pod.Annotations = map[string]string{key: then.Format(time.RFC3339)}
		if got, ok := StampOf(pod); ok != want || ok && !got.Equal(then) {
			t.Errorf("%s: %v, %v", key, got, ok)
		}
	}
}
