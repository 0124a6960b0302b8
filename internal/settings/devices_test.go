package settings

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestDevicesOf(t *testing.T) {
	one := resource.MustParse("1")
	with := func(names ...corev1.ResourceName) corev1.Container {
		list := corev1.ResourceList{}
		for _, n := range names {
			list[n] = one
		}
		return corev1.Container{Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
	}
	claims := corev1.Container{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}
	for want, pod := range map[string][]corev1.Container{
		"":                               {with("cpu", "memory", "hugepages-2Mi", "kubernetes.io/batch")},
		"a claim":                        {claims},
		"nvidia.com/gpu, rdma/hca_share": {with("cpu", "rdma/hca_share"), with("nvidia.com/gpu")},
	} {
		spec := &corev1.PodSpec{Containers: pod}
		if got := DevicesOf(spec); got != want || RequestsDevices(spec) != (want != "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
