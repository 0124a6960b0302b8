package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// closings are the nodes that gangs want whole: from the moment on when a plan names them until the last pod that wants
// them is gone. Most clusters have none, and then nobody looks at nodes for it. What is on a node the snapshot says;
// events tell the ledger of it a little earlier or later, and a pod that is let in or kept off by the ledger alone would
// not be tried again when the snapshot follows.
type closings struct {
	mu sync.RWMutex
	// seats has every pod that wants its node whole and has one. Guarded by mu, as is all that follows.
	seats map[types.UID]seat
	// nodes counts the seats whose node is known, strays those whose node is not: pods of another scheduler, and members
	// that were dropped and are not gone yet.
	nodes  map[string]closing
	strays int
}

// seat is where a pod is or is to be; planned if the snapshot cannot know of it. Without a node it is a stray.
type seat struct {
	node    string
	gang    types.NamespacedName
	planned bool
}

// closing counts members of a gang, and those of them that are planned.
type closing struct {
	gang             types.NamespacedName
	members, planned int
}

func newClosings() *closings {
	return &closings{seats: map[types.UID]seat{}, nodes: map[string]closing{}}
}

// put notes where a pod is now, in one step: whoever asks meanwhile finds the node closed by one seat or by the other.
func (c *closings) put(uid types.UID, s seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.seats[uid]
	c.seats[uid] = s
	c.count(s, 1)
	if had {
		c.count(old, -1)
	}
}

// stray notes a pod of which the ledger does not know where it is.
func (c *closings) stray(uid types.UID) { c.put(uid, seat{}) }

// seen notes a pod that the ledger does not have.
func (c *closings) seen(pod *v1.Pod) {
	if pod.Spec.NodeName != "" && closes(pod) {
		c.stray(pod.UID)
	} else {
		c.forget(pod.UID)
	}
}

// forget notes that a pod closes nothing.
func (c *closings) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, had := c.seats[uid]; had {
		delete(c.seats, uid)
		c.count(old, -1)
	}
}

func (c *closings) count(s seat, by int) {
	if s.node == "" {
		c.strays += by
		return
	}
	n := c.nodes[s.node]
	n.members += by
	if s.planned {
		n.planned += by
	}
	if by > 0 {
		n.gang = s.gang
	}
	if c.nodes[s.node] = n; n.members == 0 {
		delete(c.nodes, s.node)
	}
}

// any says whether any node may be closed.
func (c *closings) any() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.seats) > 0
}

// by says which gang has planned for a node; look: somebody may be there, which the node's pods tell.
func (c *closings) by(node string) (gang types.NamespacedName, planned, look bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes[node]
	return n.gang, n.planned > 0, n.members > 0 || c.strays > 0
}

// closes says whether a pod, wherever it is, keeps others off its node.
func closes(pod *v1.Pod) bool { return isMember(pod) && settings.WantsWholeNode(pod) }

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
		case (member && theirs == key) || p.fabric.attendant(other):
		case member && settings.WantsWholeNode(other):
			return heldWhole(theirs)
		case whole:
			return fwk.NewStatus(fwk.Unschedulable, "pod "+other.Namespace+"/"+other.Name+" is on a node that the gang wants whole")
		}
	}
	return nil
}
