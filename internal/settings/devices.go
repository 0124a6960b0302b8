package settings

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RequestsDevices reports whether some container of a pod requests devices.
func RequestsDevices(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool { return AsksForDevices(&c) })
}

// AsksForDevices reports whether the container requests an extended resource, such as nvidia.com/gpu, or for a claim.
func AsksForDevices(c *corev1.Container) bool {
	if len(c.Resources.Claims) > 0 {
		return true
	}
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name, n := range list {
			if domain, _, qualified := strings.Cut(string(name), "/"); qualified && !n.IsZero() && !strings.HasSuffix(domain, "kubernetes.io") {
				return true
			}
		}
	}
	return false
}
