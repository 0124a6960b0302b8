package plugin

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// keepOut refuses a pod of no gang a node that a gang holds whole.
func (p *Plugin) keepOut(pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
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
	return fwk.NewStatus(fwk.Unschedulable, "node is held whole by gang "+gang.String())
}

// intruder refuses a member its planned node where somebody came since: another scheduler knows nothing of the plan.
func (p *Plugin) intruder(key types.NamespacedName, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	whole := settings.WantsWholeNode(pod)
	for _, info := range node.GetPods() {
		other := info.GetPod()
		theirs, member := membership.GroupOf(other)
		switch {
		case (member && theirs == key) || p.planner.Attendant(other):
		case member && settings.WantsWholeNode(other):
			return heldWhole(theirs)
		case whole:
			return fwk.NewStatus(fwk.Unschedulable, "pod "+other.Namespace+"/"+other.Name+" is on a node that the gang wants whole")
		}
	}
	return nil
}
