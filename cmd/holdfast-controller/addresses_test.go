package main

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestCoordinatorAddresses(t *testing.T) {
	key := placeDefaults().key(coordinatorService)
	for name, c := range map[string]struct{ has, want []string }{
		"of both families": {[]string{"10.96.0.7", "fd00::7"}, []string{"10.96.0.7", "fd00::7"}},
		"headless":         {[]string{"None"}, nil},
		"none yet":         {nil, nil},
	} {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: coordinatorService},
			Spec:       corev1.ServiceSpec{ClusterIPs: c.has},
		}
		got, err := coordinatorAddresses(t.Context(), fake.NewClientBuilder().WithObjects(service).Build(), key)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := coordinatorAddresses(t.Context(), fake.NewClientBuilder().Build(), key); got != nil || err != nil {
		t.Errorf("without a Service: %v, %v", got, err)
	}
}
