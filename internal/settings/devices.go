package settings

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RequestsDevices reports whether some container of a pod requests devices.
func RequestsDevices(pod *corev1.PodSpec) bool { return DevicesOf(pod) != "" }

// KeepDevices returns containers of a few bytes, of which RequestsDevices reports the same as of the pod's.
func KeepDevices(pod *corev1.PodSpec) []corev1.Container {
	if !RequestsDevices(pod) {
		return nil
	}
	return []corev1.Container{{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}}}}
}

// DevicesOf names the devices that the containers of a pod request, sorted; "": none.
func DevicesOf(pod *corev1.PodSpec) string {
	names := map[string]bool{}
	for i := range pod.Containers {
		for _, name := range devices(&pod.Containers[i]) {
			names[name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// AsksForDevices reports whether the container requests an extended resource, such as nvidia.com/gpu, or for a claim.
func AsksForDevices(c *corev1.Container) bool { return len(devices(c)) > 0 }

func devices(c *corev1.Container) (names []string) {
	if len(c.Resources.Claims) > 0 {
		names = append(names, "a claim")
	}
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name, n := range list {
			if domain, _, qualified := strings.Cut(string(name), "/"); qualified && !n.IsZero() && !strings.HasSuffix(domain, "kubernetes.io") {
				names = append(names, string(name))
			}
		}
	}
	return names
}
