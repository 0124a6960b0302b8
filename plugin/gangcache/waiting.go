package gangcache

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Turn is a place in the documented order: a higher priority first, then the queue key.
type Turn struct {
	Priority int32
	Key      QueueKey
}

// Compare is below zero where t goes first.
func (t Turn) Compare(o Turn) int {
	return cmp.Or(cmp.Compare(o.Priority, t.Priority), t.Key.Compare(o.Key))
}

// TurnOf is the place of a pod of no gang, which counts as a gang of one.
func TurnOf(pod *v1.Pod) Turn {
	return Turn{
		corev1helpers.PodPriority(pod),
		QueueKey{Since: pod.CreationTimestamp.Time, Gang: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}},
	}
}

// Waiting is a gang that has all it needs but room, wherever the scheduling queue keeps its pods.
type Waiting struct {
	Turn
	// Version changes with the set of members; Pending counts the members that could be placed; GivenUp counts the latest plans in
	// a row that could not be followed.
	Version, Pending, GivenUp int
}

// mostGivenUp is after how many plans in a row that could not be followed a gang keeps others waiting no more.
const mostGivenUp = 3

// AnyWaiting reports whether any gang has members without a node.
func (c *Cache) AnyWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0
}

// Ahead lists the gangs but one that wait for room and have their turn before another, first to last.
func (c *Cache) Ahead(of Turn, but types.NamespacedName) []Waiting {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Waiting
	for key, g := range c.waiting {
		if g.phase.open() || g.sizeErr != nil || g.givenUp > mostGivenUp || !g.schedulable() || g.first() == nil {
			continue
		}
		w := Waiting{g.turn(), g.version, g.counts[Pending] - g.gated, g.givenUp}
		if key != but && w.Compare(of) < 0 {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b Waiting) int { return a.Compare(b.Turn) })
	return all
}

// turn is the place of the gang's first pod that waits.
func (g *group) turn() Turn {
	return Turn{
		corev1helpers.PodPriority(g.first().Pod),
		QueueKey{Degraded: g.degraded(), Since: g.began(), Gang: g.key, Slot: g.first().Slot.N},
	}
}

// GangTurn is a gang's place in the order as things are now; ok is false where none of its pods waits.
func (c *Cache) GangTurn(key types.NamespacedName) (t Turn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[key]; g != nil && g.first() != nil {
		return g.turn(), true
	}
	return Turn{}, false
}

// Why says for people why the gang goes before another one.
func (w Waiting) Why(than Turn) string {
	why := "is older"
	switch {
	case w.Priority > than.Priority:
		why = "has a higher priority"
	case w.Key.Degraded && !than.Key.Degraded:
		why = "lost a pod and waits for its replacement"
	}
	return "gang " + w.Key.Gang.String() + " is ahead: it " + why + ", and fits now"
}

// WaitingInput is what a plan for a waiting gang is made of, whether the scheduling queue has seen all of it or not.
func (c *Cache) WaitingInput(key types.NamespacedName) (Snapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.phase.open() || g.sizeErr != nil || !g.schedulable() {
		return Snapshot{}, false
	}
	return g.snapshot(), true
}

// TakeReleased returns, once, the nodes on which plans gave room back.
func (c *Cache) TakeReleased() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.released
	c.released = nil
	return all
}
