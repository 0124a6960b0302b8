package gangcache

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Snapshot is a copy of the gang's state for one plan; members are sorted by slot.
type Snapshot struct {
	Size int
	// Required is how many members must be on nodes, 0: all.
	Required int
	Terms    Terms
	Members  []Member
	// Leader is the pod that plans; empty for a query.
	Leader types.UID
	// Version changes with the set of members.
	Version int
	// Initial: the gang was never complete, and is rolled back if it cannot be.
	Initial bool
}

// snapshot returns the input of a plan.
func (g *group) snapshot() (r Snapshot) {
	for _, m := range g.members {
		if m.gated && m.State == Pending {
			continue // the gang runs without it
		}
		r.Members = append(r.Members, *m)
	}
	r.Version, r.Initial = g.version, g.phase.initial()
	r.Size, r.Terms = max(g.size-g.over(), len(r.Members)), g.terms
	if g.terms.Min > 0 {
		r.Required = max(1, g.terms.Min-g.over())
	}
	slices.SortFunc(r.Members, BySlot)
	return r
}

// Essential returns the pending members that their tasks need: those of the lowest slots.
func (s Snapshot) Essential() map[types.UID]bool {
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

// Enough reports whether an elastic gang has nodes for all that it needs, so that others only join.
func (s Snapshot) Enough() bool {
	return s.Required > 0 && s.OnNodes() >= s.Required && len(s.Essential()) == 0
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
