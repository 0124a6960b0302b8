package plugin

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// rejectSinglePod rejects a pod of no gang from a node that a gang uses exclusively.
func (p *Plugin) rejectSinglePod(pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.planner.Attendant(pod) {
		return nil
	}
	gang, planned, look := p.gangs.Exclusive(node.Node().Name)
	if planned {
		return heldWhole(gang)
	}
	if !look {
		return nil
	}
	for _, info := range node.GetPods() {
		if key, ok := membership.GroupOf(info.GetPod()); ok && settings.WantsWholeNode(info.GetPod()) {
			return heldWhole(key)
		}
	}
	return nil
}

func heldWhole(gang types.NamespacedName) *fwk.Status {
	return fwk.NewStatus(fwk.Unschedulable, "node is used exclusively by gang "+gang.String())
}

// rejectIntruded rejects a member from its planned node if another scheduler has placed a pod there since.
func (p *Plugin) rejectIntruded(key types.NamespacedName, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	whole := settings.WantsWholeNode(pod)
	for _, info := range node.GetPods() {
		other := info.GetPod()
		theirs, member := membership.GroupOf(other)
		switch {
		case (member && theirs == key) || p.planner.Attendant(other):
		case member && settings.WantsWholeNode(other):
			return heldWhole(theirs)
		case whole:
			return fwk.NewStatus(fwk.Unschedulable, "pod "+other.Namespace+"/"+other.Name+" is on a node that the gang needs exclusively")
		}
	}
	return nil
}
