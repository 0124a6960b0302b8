package gangcache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/preemption"
)

// Snapshot is a copy of the gang's state for one plan; members are sorted by slot.
type Snapshot struct {
	Size int
	// Required is how many members must be on nodes, 0: all.
	Required int
	Terms    Terms
	// Succeeded are the slots in which a pod succeeded, of a gang with Terms.Unit.
	Succeeded map[int]bool
	Members   []Member
	// Leader is the pod that plans; empty for a query.
	Leader types.UID
	// Version changes with the set of members. Pending counts the gang's members that could be placed, of which the plan may leave some out.
	Version, Pending int
	// Initial: the gang was never complete, and is rolled back if it cannot be.
	Initial bool
	// Turn is the plan's place in the order of gangs.
	Turn Turn
	// Else are the plans of which the first that fits is carried out if this one is refused, in their order: surplus of other roles.
	Else []Snapshot
}

// snapshot returns the input of a plan.
func (g *group) snapshot() (r Snapshot) {
	for _, m := range g.members {
		if m.State == Pending && (m.gated || g.incompleteBlock(m)) {
			continue // the gang runs without it
		}
		r.Members = append(r.Members, *m)
	}
	r.Version, r.Pending, r.Initial = g.version, g.counts[Pending]-g.gated, g.phase.initial()
	r.Size, r.Terms = max(g.mustExist()-g.over(), len(r.Members)), g.terms
	if g.terms.Unit > 1 {
		r.Succeeded = g.succeeded()
	}
	r.Required = r.Least(g.over())
	slices.SortFunc(r.Members, BySlot)
	return r
}

// Essential returns the pending members that their tasks need, those of the lowest slots, or that complete the blocks that the gang needs.
func (s Snapshot) Essential() map[types.UID]bool {
	if s.Terms.Unit > 1 {
		return s.completing()
	}
	if len(s.Terms.Tasks) == 0 {
		return nil
	}
	have, must := map[string]int{}, map[types.UID]bool{}
	for _, m := range s.Members {
		have[m.Task] += flag(m.State != Pending)
	}
	for _, m := range s.Members {
		if m.State == Pending && have[m.Task] < s.Terms.Tasks[m.Task] {
			have[m.Task]++
			must[m.Pod.UID] = true
		}
	}
	return must
}

// Needed returns the snapshot without the gang's surplus, as package gang defines that, the pods of the surplus, and whether members
// remain to be placed. The surplus takes free nodes, in the order in which its pods began to wait. It holds no room, preempts nothing,
// and does not use room that is held for others.
func (s Snapshot) Needed() (needed Snapshot, surplus []*v1.Pod, wants bool) {
	if s.Required == 0 {
		return s, nil, s.OnNodes() < len(s.Members)
	}
	g := gang.Gang{Min: s.Required, Unit: s.Terms.Unit, Members: make([]gang.Member, len(s.Members))}
	essential := s.Essential()
	for i, m := range s.Members {
		g.Members[i] = gang.Member{Slot: m.Slot.N, Name: m.Pod.Name, Node: m.Node, Essential: essential[m.Pod.UID]}
	}
	must, more := g.Needed()
	if len(more) == 0 {
		return s, nil, len(must) > 0
	}
	left := map[types.UID]bool{}
	for _, i := range more {
		surplus = append(surplus, s.Members[i].Pod)
		left[s.Members[i].Pod.UID] = true
	}
	return s.without(func(m Member) bool { return left[m.Pod.UID] }), surplus, len(must) > 0
}

// without returns the snapshot without some members.
func (s Snapshot) without(left func(Member) bool) Snapshot {
	s.Members = slices.DeleteFunc(slices.Clone(s.Members), left)
	s.Size = len(s.Members)
	return s
}

// With returns the snapshot with those of the members to be placed that a placement names, by name.
func (s Snapshot) With(placed map[string]string) Snapshot {
	return s.without(func(m Member) bool { return m.State == Pending && placed[m.Pod.Name] == "" })
}

// Enough reports whether an elastic gang has nodes for all that it needs, so that others only join.
func (s Snapshot) Enough() bool {
	_, _, wants := s.Needed()
	return s.Required > 0 && !wants
}

// Priority is the priority by which room held for others is open to a plan: that of the gang's pods, or Lowest if the plan has surplus.
func (s Snapshot) Priority() int32 {
	if _, surplus, _ := s.Needed(); len(surplus) > 0 {
		return preemption.Lowest
	}
	return corev1helpers.PodPriority(s.Members[0].Pod)
}

// Degraded reports whether the gang was complete, has members on nodes, and needs more.
func (s Snapshot) Degraded() bool {
	return !s.Initial && !s.Enough() && slices.ContainsFunc(s.Members, func(m Member) bool { return m.State == Bound })
}

// List returns a snapshot of the members that exist, even if some are missing.
func (c *Cache) List(key types.NamespacedName) Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r Snapshot
	if g := c.groups[key]; g != nil {
		for _, m := range g.members {
			r.Members = append(r.Members, *m)
		}
	}
	return r
}

// OnNodes returns the number of members with a node.
func (s Snapshot) OnNodes() int {
	n := 0
	for _, m := range s.Members {
		if m.State != Pending {
			n++
		}
	}
	return n
}
