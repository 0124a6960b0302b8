package simnode

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// RackLabel names a simulated node's rack; the zone is in the well-known label.
const RackLabel = "devcluster.holdfast.dev/rack"

// SimLabel marks simulated nodes.
const SimLabel = "devcluster.holdfast.dev/simulated"

// AliveLabel, while "true", makes kwok renew a simulated node's lease; with any other value the node is silent.
const AliveLabel = "devcluster.holdfast.dev/alive"

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
			SimLabel: "true", AliveLabel: "true",
		}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			// Kwok's own. If no node is real, kube-proxy takes the first for its own, waits half a minute for the address, and ends if it changes.
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: s.ControlIP()}, {Type: corev1.NodeHostName, Address: name}},
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
