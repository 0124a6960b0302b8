package gangcache

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// exclusive are the nodes that gangs want whole: from the moment on when a plan names them until the last pod that wants
// them is gone. Most clusters have none, and then nobody looks at nodes for it. What is on a node the snapshot says;
// events tell the cache of it a little earlier or later, and a pod that is let in or kept off by the cache alone would
// not be tried again when the snapshot follows.
type exclusive struct {
	mu sync.RWMutex
	// uses has every pod that wants its node whole and has one. Guarded by mu, as is all that follows.
	uses map[types.UID]nodeUse
	// nodes counts the uses whose node is known, strays those whose node is not: pods of another scheduler, and members
	// that were dropped and are not gone yet.
	nodes  map[string]exclusion
	strays int
}

// nodeUse is where a pod is or will be; planned where the snapshot cannot show it yet. Without a node it is a stray.
type nodeUse struct {
	node    string
	gang    types.NamespacedName
	planned bool
}

// exclusion counts members of a gang, and those of them that are planned.
type exclusion struct {
	gang             types.NamespacedName
	members, planned int
}

func newExclusive() *exclusive {
	return &exclusive{uses: map[types.UID]nodeUse{}, nodes: map[string]exclusion{}}
}

// put notes where a pod is now, in one step: whoever asks meanwhile finds the node closed by one use or by the other.
func (c *exclusive) put(uid types.UID, s nodeUse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.uses[uid]
	c.uses[uid] = s
	c.count(s, 1)
	if had {
		c.count(old, -1)
	}
}

// stray notes a pod of which the cache does not know where it is.
func (c *exclusive) stray(uid types.UID) { c.put(uid, nodeUse{}) }

// seen notes a pod that the cache does not have.
func (c *exclusive) seen(pod *v1.Pod) {
	if pod.Spec.NodeName != "" && closes(pod) {
		c.stray(pod.UID)
	} else {
		c.forget(pod.UID)
	}
}

// forget notes that a pod closes nothing.
func (c *exclusive) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, had := c.uses[uid]; had {
		delete(c.uses, uid)
		c.count(old, -1)
	}
}

func (c *exclusive) count(s nodeUse, by int) {
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

// any reports whether any node may be closed.
func (c *exclusive) any() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.uses) > 0
}

// by returns which gang has planned for a node; look: a pod may be there that wants it exclusively, which the node's
// pods show.
func (c *exclusive) by(node string) (gang types.NamespacedName, planned, look bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes[node]
	return n.gang, n.planned > 0, n.members > 0 || c.strays > 0
}

// closes reports whether a pod wants its node exclusively, wherever it is.
func closes(pod *v1.Pod) bool {
	_, member := membership.GroupOf(pod)
	return member && settings.WantsWholeNode(pod)
}

// ObserveOther notes a pod that is no member of a gang of this scheduler.
func (c *Cache) ObserveOther(pod *v1.Pod) { c.exclusive.seen(pod) }

// ForgetOther notes that such a pod is gone.
func (c *Cache) ForgetOther(uid types.UID) { c.exclusive.forget(uid) }

// AnyExclusive reports whether any node may be held whole.
func (c *Cache) AnyExclusive() bool { return c.exclusive.any() }

// Exclusive returns which gang has planned to use a node exclusively; look: a pod that does may be there, which the
// node's pods show.
func (c *Cache) Exclusive(node string) (gang types.NamespacedName, planned, look bool) {
	return c.exclusive.by(node)
}
