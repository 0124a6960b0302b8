package harness

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestLeader: the holder of a lease is an existing pod with exactly that name.
func TestLeader(t *testing.T) {
	const lease = "holdfast-controller"
	for holder, want := range map[string]string{"holdfast-controller-1_uid": "holdfast-controller-1", "holdfast-controller-1": "holdfast-controller-1", "": "", "holdfast-controller-0_uid": ""} {
		w := &World{kube: fake.NewClientset(
			&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: lease},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
			},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "holdfast-controller"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "holdfast-controller-1"}})}
		got, err := w.Leader(t.Context(), lease)
		if name := nameOf(got); err != nil || name != want {
			t.Errorf("of %q: %q, %v, want %q", holder, name, err, want)
		}
		if _, err := w.Leader(t.Context(), "holdfast-scheduler"); err == nil {
			t.Error("a lease that is not there has a holder")
		}
	}
}

func nameOf(p *corev1.Pod) string {
	if p == nil {
		return ""
	}
	return p.Name
}
