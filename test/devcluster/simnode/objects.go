package simnode

import (
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// RackLabel names a simulated node's rack; the zone stands in the well-known label.
const RackLabel = "devcluster.holdfast.dev/rack"

// SimLabel marks simulated nodes.
const SimLabel = "devcluster.holdfast.dev/simulated"

// Node is simulated node i, Ready from the start.
func Node(s *layout.Spec, i int, now time.Time) *corev1.Node {
	name := s.SimNodeName(i)
	rack := i / max(1, s.Sim.NodesPerRack)
	zone := rack / max(1, s.Sim.RacksPerZone)
	has := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("192"),
		corev1.ResourceMemory:           resource.MustParse("2Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	if s.Sim.GPUsPerNode > 0 {
		has[layout.GPUResource] = *resource.NewQuantity(int64(s.Sim.GPUsPerNode), resource.DecimalSI)
	}
	at := metav1.NewTime(now)
	condition := func(t corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: status, Reason: reason, LastHeartbeatTime: at, LastTransitionTime: at}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", zone), RackLabel: fmt.Sprintf("rack-%03d", rack),
			SimLabel: "true",
		}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "Simulated"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "Simulated"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "Simulated"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "Simulated"),
			},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v0.0.0-simulated", OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
}

// RunningStatus is the status of a pod whose containers all run since now.
func RunningStatus(p *corev1.Pod, s *layout.Spec, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now)
	st := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at, PodIP: podIP(p, s)}
	st.PodIPs = []corev1.PodIP{{IP: st.PodIP}}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: at})
	}
	started := true
	for _, c := range p.Spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: &started,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		})
	}
	return st
}

// podIP makes an address up, outside of all ranges that real parts use.
func podIP(p *corev1.Pod, s *layout.Spec) string {
	h := fnv.New32a()
	h.Write([]byte(p.UID)) // a hash's Write returns no error
	v := h.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", s.Octet, 64+v>>8%64, 1+v%254)
}
