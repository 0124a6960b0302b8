package settings

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// Of Holdfast's annotations a pod of another API's group may have only those on the fabric.
func TestKeysOnPodsOfGroups(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"scheduling.x-k8s.io/pod-group": "x"},
			Annotations: map[string]string{v1alpha1.AnnotationTopologyRequired: "rack"},
		},
	}
	if membership.OnlyPlaced(p) {
		t.Error("a pod of the default scheduler is taken for one of ours")
	}
	p.Spec.SchedulerName = v1alpha1.SchedulerName
	if errs := CheckAsks(p); !membership.OnlyPlaced(p) || len(errs) > 0 {
		t.Errorf("%v", errs)
	}
	p.Annotations[v1alpha1.AnnotationStateSize], p.Annotations[v1alpha1.AnnotationSpares] = "1Gi", "x"
	if errs := CheckAsks(p); len(errs) != 2 {
		t.Errorf("%v", errs)
	}
	p.Annotations[v1alpha1.AnnotationEnabled] = "true"
	if membership.OnlyPlaced(p) {
		t.Error("a pod that is opted in is only placed")
	}
}
