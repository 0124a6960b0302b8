package gangcache

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Turn is a place in the documented order of gangs: a higher priority first, then the queue key.
type Turn struct {
	Priority int32
	Key      QueueKey
}

// Compare returns a value below zero if t goes first.
func (t Turn) Compare(o Turn) int {
	return cmp.Or(cmp.Compare(o.Priority, t.Priority), t.Key.Compare(o.Key))
}

// TurnOf returns the place of a pod of no gang, which counts as a gang of one.
func TurnOf(pod *v1.Pod) Turn {
	return Turn{
		corev1helpers.PodPriority(pod),
		QueueKey{Since: pod.CreationTimestamp.Time, Gang: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}},
	}
}

// Waiting is a gang that lacks only room, whether its pods are active, in backoff or unschedulable in the scheduling queue.
type Waiting struct {
	Turn
	// Version changes with the set of members. Pending counts the members that could be placed, GivenUp the latest plans in a row that
	// members could not follow.
	Version, Pending, GivenUp int
}

// mostGivenUp is the number of plans in a row that could not be followed after which other pods no longer wait for the gang.
const mostGivenUp = 3

// AnyWaiting reports whether any gang has members without a node.
func (c *Cache) AnyWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0
}

// Ahead returns the gangs, except one, that wait for room and go before a place, first to last.
func (c *Cache) Ahead(of Turn, but types.NamespacedName) []Waiting {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Waiting
	for key, g := range c.waiting {
		if !g.waits() {
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

// waits reports whether the gang lacks only room.
func (g *group) waits() bool {
	return !g.phase.open() && g.sizeErr == nil && g.givenUp <= mostGivenUp && g.schedulable() && g.first() != nil
}

// turn returns the place of the gang's first waiting pod, turnOf that of any.
func (g *group) turn() Turn            { return g.turnOf(g.first()) }
func (g *group) turnOf(m *Member) Turn { return Turn{corev1helpers.PodPriority(m.Pod), g.queueKey(m)} }

// planned returns the next plan's input. What the gang needs has its turn, and takes along the surplus unless that would pass another gang.
// Surplus alone is placed in the order in which its pods began to wait.
func (c *Cache) planned(g *group) Snapshot {
	r := g.snapshot()
	if g.first() == nil {
		return r
	}
	r.Turn = g.turn()
	if r.Required == 0 {
		return r
	}
	needed, surplus, wants := r.Needed()
	if !wants {
		return g.joining(r)
	}
	last := Turn{Priority: r.Turn.Priority, Key: QueueKey{Gang: g.key}}
	for _, pod := range surplus {
		if made := pod.CreationTimestamp.Time; made.After(last.Key.Since) {
			last.Key.Since = made
		}
	}
	if len(surplus) > 0 && c.anyBetween(r.Turn, last, g.key) {
		return needed
	}
	return r
}

// anyBetween reports whether a gang, except one, or part of its surplus waits for room between two places.
func (c *Cache) anyBetween(from, to Turn, but types.NamespacedName) bool {
	between := func(t Turn) bool { return from.Compare(t) < 0 && t.Compare(to) < 0 }
	for key, g := range c.waiting {
		if key == but || !g.waits() {
			continue
		}
		if between(g.turn()) {
			return true
		}
		for _, m := range g.members {
			if g.terms.Min > 0 && m.State == Pending && !m.gated && !g.incompleteBlock(m) && g.enough() && between(g.turnOf(m)) {
				return true
			}
		}
	}
	return false
}

// MostRoles is the most roles of which surplus is tried in one scheduling cycle.
const MostRoles = 16

// joining returns the plan for surplus alone: the pods, or blocks, that have waited longest. If they do not fit, neither do younger ones of
// their role: Else has the oldest of each other role.
func (g *group) joining(r Snapshot) Snapshot {
	of, parties := g.parties(slices.DeleteFunc(slices.Clone(r.Members), func(m Member) bool { return m.State != Pending }))
	var plans []Snapshot
	seen := map[string]bool{}
	for _, oldest := range parties {
		if seen[oldest.role] || len(plans) == MostRoles {
			continue
		}
		seen[oldest.role] = true
		began := &oldest.last.Pod.CreationTimestamp
		p := r.without(func(m Member) bool {
			if m.State != Pending {
				return false
			}
			own := of[m.Pod.UID]
			return own.role != oldest.role || !own.last.Pod.CreationTimestamp.Equal(began)
		})
		p.Turn = g.turnOf(oldest.last)
		plans = append(plans, p)
	}
	plans[0].Else = plans[1:]
	return plans[0]
}

// Why explains to users why the gang goes before another one.
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

// WaitingInput returns the input of a plan for a waiting gang, even if the scheduling queue lacks some of its pods.
func (c *Cache) WaitingInput(key types.NamespacedName) (Snapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.phase.open() || g.sizeErr != nil || !g.schedulable() {
		return Snapshot{}, false
	}
	return c.planned(g), true
}

// TakeReleased returns, once, the nodes on which plans released room.
func (c *Cache) TakeReleased() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.released
	c.released = nil
	return all
}
