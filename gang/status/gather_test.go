package status

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// A replaced pod is no member; that it may not go is still told.
func TestNoteOfARefusedEviction(t *testing.T) {
	pod := func(name, refused string, replaced bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n1"}}
		if refused != "" {
			p.Annotations[v1alpha1.AnnotationEvictionRefused] = refused
		}
		if replaced {
			p.Labels[v1alpha1.LabelReplaced] = "true"
		}
		return p
	}
	got := GatherJobGang(&v1alpha1.Gang{}, &batchv1.Job{}, settings.Job{}, []corev1.Pod{
		pod("goes", "", true), pod("stays", "budget keep needs 2 healthy pods", true), pod("member", "left over", false),
	})
	if want := []string{"pod stays on node n1 was replaced but cannot be evicted yet: budget keep needs 2 healthy pods"}; !slices.Equal(got.Notes, want) {
		t.Errorf("notes %q, want %q", got.Notes, want)
	}
}
