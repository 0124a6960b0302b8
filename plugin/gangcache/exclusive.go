package gangcache

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// exclusive are the nodes that gangs use exclusively: from the plan that names them until the last such pod is gone. Most clusters have
// none and then check no node. Only the snapshot decides which pods are on a node: events reach this cache earlier or later than the
// snapshot, and a pod that was judged by this cache alone would not be retried when the snapshot follows.
type exclusive struct {
	mu sync.RWMutex
	// uses has every pod that uses its node exclusively. Guarded by mu, with all below.
	uses map[types.UID]nodeUse
	// nodes counts the uses whose node is known, strays the others: pods of another scheduler, and members that were dropped and are not
	// gone yet.
	nodes  map[string]exclusion
	strays int
}

// nodeUse is the node of a pod; planned: the snapshot cannot show the pod yet. Without a node it is a stray.
type nodeUse struct {
	node    string
	gang    types.NamespacedName
	planned bool
}

// exclusion counts members of a gang on a node, and how many of them are planned.
type exclusion struct {
	gang             types.NamespacedName
	members, planned int
}

func newExclusive() *exclusive {
	return &exclusive{uses: map[types.UID]nodeUse{}, nodes: map[string]exclusion{}}
}

// put records a pod's present node in one step: a concurrent reader finds the old use or the new one, never none.
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

// stray records a pod whose node the cache does not know.
func (c *exclusive) stray(uid types.UID) { c.put(uid, nodeUse{}) }

// seen records a pod that is no member in the cache.
func (c *exclusive) seen(pod *v1.Pod) {
	if pod.Spec.NodeName != "" && closes(pod) {
		c.stray(pod.UID)
	} else {
		c.forget(pod.UID)
	}
}

// forget drops a pod's use.
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

// any reports whether any node may be used exclusively.
func (c *exclusive) any() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.uses) > 0
}

// by returns which gang has planned for a node; look: the caller must also check the node's pods.
func (c *exclusive) by(node string) (gang types.NamespacedName, planned, look bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes[node]
	return n.gang, n.planned > 0, n.members > 0 || c.strays > 0
}

// closes reports whether a pod requests its node exclusively.
func closes(pod *v1.Pod) bool {
	_, member := membership.GroupOf(pod)
	return member && settings.WantsWholeNode(pod)
}

// ObserveOther records a pod that is no member of a gang of this scheduler.
func (c *Cache) ObserveOther(pod *v1.Pod) { c.exclusive.seen(pod) }

// ForgetOther drops such a pod.
func (c *Cache) ForgetOther(uid types.UID) { c.exclusive.forget(uid) }

// AnyExclusive reports whether any node may be used exclusively.
func (c *Cache) AnyExclusive() bool { return c.exclusive.any() }

// Exclusive returns which gang has planned to use a node exclusively; look: the caller must also check the node's pods.
func (c *Cache) Exclusive(node string) (gang types.NamespacedName, planned, look bool) {
	return c.exclusive.by(node)
}
