package gangcache

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"holdfast.dev/holdfast/gang"
)

// QueueKey is what a pod's place in the queue goes by, beside its priority. It is made when the pod enters the active queue
// and stays as it is until it leaves it: the queue is a heap, in which the order of two pods must not change.
type QueueKey struct {
	// Degraded: others of its gang are on nodes and wait for it.
	Degraded bool
	// Since is when the first pod of its gang was created.
	Since time.Time
	Gang  types.NamespacedName
	Slot  int
}

// Compare is below zero where t goes first.
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

// QueueKey is what a member's place in the queue goes by as things are now.
func (c *Cache) QueueKey(key types.NamespacedName, uid types.UID) (QueueKey, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.members[uid] == nil {
		return QueueKey{}, false
	}
	return QueueKey{Degraded: g.degraded(), Since: g.began(), Gang: key, Slot: g.members[uid].Slot.N}, true
}

// degraded reports whether members stand on nodes and wait for others that the gang needs, and it does not give its nodes back.
func (g *group) degraded() bool {
	enough := g.minimumPlaced() && (len(g.terms.Tasks) == 0 || g.snapshot().Enough())
	return g.counts[Bound] > 0 && !g.phase.initial() && g.counts[Pending]+g.counts[Planned] > 0 && !enough
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

// FirstBlocked is the first gang in the queue's order of those that never were whole and are refused for lack of room, but
// for those that stand back: what fits no cluster must not keep all others from having their room reserved.
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
