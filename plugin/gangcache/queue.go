package gangcache

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"holdfast.dev/holdfast/gang"
)

// QueueKey is a pod's sort key in the scheduling queue, beside its priority. It is computed when the pod enters the active queue and does
// not change until it leaves: the queue is a heap, in which the order of two pods must not change.
type QueueKey struct {
	// Degraded: other members of its gang are on nodes and wait for the pod.
	Degraded bool
	// Since is when the first pod of its gang was created, or when the pod itself was, if the gang has its minimum without it.
	Since time.Time
	Gang  types.NamespacedName
	Slot  int
}

// Compare returns a value below zero if t goes first.
func (t QueueKey) Compare(o QueueKey) int {
	if t.Degraded != o.Degraded {
		if t.Degraded {
			return -1
		}
		return 1
	}
	return cmp.Or(
		t.Since.Compare(o.Since),
		cmp.Compare(t.Gang.Namespace, o.Gang.Namespace),
		cmp.Compare(t.Gang.Name, o.Gang.Name),
		cmp.Compare(t.Slot, o.Slot),
	)
}

// QueueKey returns a member's present sort key.
func (c *Cache) QueueKey(key types.NamespacedName, uid types.UID) (QueueKey, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.members[uid] == nil {
		return QueueKey{}, false
	}
	return g.queueKey(g.members[uid]), true
}

// queueKey is a member's sort key. If only surplus is to be placed, each pod of it has waited since its own creation, or that of the
// youngest one of its block.
func (g *group) queueKey(m *Member) QueueKey {
	k := QueueKey{Degraded: g.degraded(), Since: g.began(), Gang: g.key, Slot: m.Slot.N}
	if g.enough() {
		k.Since = g.waitsSince(m)
	}
	return k
}

// enough reports whether the gang needs no more nodes: what it still waits for is surplus.
func (g *group) enough() bool {
	if len(g.terms.Tasks) == 0 {
		return g.minimumPlaced() && g.counts[Reserved]+g.counts[Bound] > 0
	}
	return g.minimumPlaced() && g.snapshot().Enough()
}

// degraded reports whether members on nodes wait for others that the gang needs, and the gang is not rolled back.
func (g *group) degraded() bool {
	return g.counts[Bound] > 0 && !g.phase.initial() && g.counts[Pending]+g.counts[Planned] > 0 && !g.enough()
}

// began is when the first of the gang's pods was created.
func (g *group) began() time.Time {
	if !g.oldest.IsZero() {
		return g.oldest
	}
	for _, m := range g.members {
		if created := m.Pod.CreationTimestamp.Time; g.oldest.IsZero() || created.Before(g.oldest) {
			g.oldest = created
		}
	}
	return g.oldest
}

// FirstBlocked returns the first gang, in the queue's order, that was never complete and is refused for lack of room. It skips those for
// which back is true: a gang that fits no cluster must not keep others from a reservation.
func (c *Cache) FirstBlocked(back func(types.NamespacedName) bool) (first types.NamespacedName, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var best QueueKey
	var most int32
	for key, g := range c.groups {
		if g.refusal == nil || g.refusal.Reason != gang.InsufficientNodes || g.counts[Bound] > 0 || g.first() == nil || back(key) {
			continue
		}
		priority := corev1helpers.PodPriority(g.first().Pod)
		own := QueueKey{Since: g.began(), Gang: key}
		if !ok || priority > most || (priority == most && own.Compare(best) < 0) {
			first, best, most, ok = key, own, priority, true
		}
	}
	return first, ok
}
