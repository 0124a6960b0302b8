package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/internal/translate"
)

// closings are the nodes that gangs want whole: from the moment on when a plan names them until the last pod that wants
// them is gone. Most clusters have none, and then nobody looks at nodes for it. What is on a node the snapshot says;
// events tell the ledger of it a little earlier or later, and a pod that is let in or kept off by the ledger alone would
// not be tried again when the snapshot follows.
type closings struct {
	mu sync.RWMutex
	// nodes have members of the ledger on them or on the way. Guarded by mu, as is all that follows.
	nodes map[string]closing
	// strays are pods that want the node whole that they are on, of which the ledger does not know where they are:
	// those of another scheduler, and members that were dropped and are not gone yet.
	strays map[types.UID]bool
}

// closing counts members of a gang, and those of them that are planned, of which the snapshot cannot know.
type closing struct {
	gang             types.NamespacedName
	members, planned int
}

func newClosings() *closings {
	return &closings{nodes: map[string]closing{}, strays: map[types.UID]bool{}}
}

// add counts members of a gang that come to a node, or go.
func (c *closings) add(node string, gang types.NamespacedName, members, planned int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[node]
	n.gang, n.members, n.planned = gang, n.members+members, n.planned+planned
	if c.nodes[node] = n; n.members == 0 {
		delete(c.nodes, node)
	}
}

func (c *closings) stray(uid types.UID, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is {
		c.strays[uid] = true
	} else {
		delete(c.strays, uid)
	}
}

// any says whether any node may be closed.
func (c *closings) any() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.nodes)+len(c.strays) > 0
}

// by says which gang has planned for a node; look: somebody may be there, which the node's pods tell.
func (c *closings) by(node string) (gang types.NamespacedName, planned, look bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes[node]
	return n.gang, n.planned > 0, n.members > 0 || len(c.strays) > 0
}

// closes says whether a pod, wherever it is, keeps others off its node.
func closes(pod *v1.Pod) bool { return isMember(pod) && translate.WantsWholeNode(pod) }

// keepOut refuses a pod of no gang a node that a gang holds whole.
func (p *Plugin) keepOut(pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.fabric.attendant(pod) {
		return nil
	}
	gang, planned, look := p.ledger.closed.by(node.Node().Name)
	if planned {
		return heldWhole(gang)
	}
	if !look {
		return nil
	}
	for _, info := range node.GetPods() {
		if key, ok := translate.GroupOf(info.GetPod()); ok && translate.WantsWholeNode(info.GetPod()) {
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
	whole := translate.WantsWholeNode(pod)
	for _, info := range node.GetPods() {
		other := info.GetPod()
		theirs, member := translate.GroupOf(other)
		switch {
		case (member && theirs == key) || p.fabric.attendant(other):
		case member && translate.WantsWholeNode(other):
			return heldWhole(theirs)
		case whole:
			return fwk.NewStatus(fwk.Unschedulable, "pod "+other.Namespace+"/"+other.Name+" is on a node that the gang wants whole")
		}
	}
	return nil
}
