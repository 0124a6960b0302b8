package planner

import (
	"crypto/sha256"
	"encoding/json"

	v1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/internal/membership"
)

// RoleOf returns a key that is equal only for pods that every filter judges alike: a hash of all of the pod's labels and spec except what
// only the kubelet and the container read. Different keys for equal pods only cost time. Bound generic ephemeral volumes are not in the
// spec: see BoundVolumes.
func RoleOf(pod *v1.Pod) string {
	labels := make(map[string]string, len(pod.Labels))
	for k, v := range pod.Labels {
		if !membership.IsPerPod(pod, k) {
			labels[k] = v
		}
	}
	spec := pod.Spec
	spec.NodeName, spec.Hostname, spec.Subdomain, spec.ServiceAccountName, spec.ImagePullSecrets = "", "", "", "", nil
	spec.InitContainers, spec.Containers = judged(spec.InitContainers), judged(spec.Containers)
	spec.Volumes = judgedVolumes(spec.Volumes)
	text, err := json.Marshal([]any{pod.Namespace, spec})
	if err != nil {
		return string(pod.UID)
	}
	encoded, err := json.Marshal(labels)
	if err != nil {
		return string(pod.UID)
	}
	sum, labelled := sha256.Sum256(text), sha256.Sum256(encoded)
	return string(sum[:]) + string(labelled[:])
}

// withoutLabels is the part of a role that does not depend on labels.
func withoutLabels(role string) string { return role[:min(len(role), sha256.Size)] }

// judged returns the fields of containers that filters read.
func judged(containers []v1.Container) []v1.Container {
	kept := make([]v1.Container, len(containers))
	for i, c := range containers {
		kept[i] = v1.Container{
			Name:               c.Name,
			Resources:          c.Resources,
			ResizePolicy:       c.ResizePolicy,
			RestartPolicy:      c.RestartPolicy,
			RestartPolicyRules: c.RestartPolicyRules,
			Ports:              c.Ports,
			SecurityContext:    c.SecurityContext,
			Lifecycle:          c.Lifecycle,
			VolumeDevices:      c.VolumeDevices,
		}
	}
	return kept
}

// judgedVolumes leaves out volumes that no filter looks at, such as the one with the pod's token, whose name is random, and the names
// of claims' volumes, which are random where Volcano mounts a job's claim into each pod.
func judgedVolumes(volumes []v1.Volume) []v1.Volume {
	var kept []v1.Volume
	for _, v := range volumes {
		if v.EmptyDir == nil && v.ConfigMap == nil && v.Secret == nil && v.DownwardAPI == nil && v.Projected == nil && v.HostPath == nil &&
			v.NFS == nil {
			if v.PersistentVolumeClaim != nil {
				v.Name = ""
			}
			kept = append(kept, v)
		}
	}
	return kept
}

// touchesOthers reports whether such pods may exclude one another from a node by more than resources.
func touchesOthers(pod *v1.Pod) bool {
	spec := &pod.Spec
	if len(spec.TopologySpreadConstraints) > 0 || len(judgedVolumes(spec.Volumes)) > 0 {
		return true
	}
	if a := spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		return true
	}
	return len(hostPorts(pod)) > 0
}

// relatesToPods reports whether the pod's rules refer to other pods, so that filters need each placed pod.
func relatesToPods(pod *v1.Pod) bool {
	a := pod.Spec.Affinity
	return len(pod.Spec.TopologySpreadConstraints) > 0 || (a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil))
}
