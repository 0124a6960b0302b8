package preemption

import (
	"cmp"
	"slices"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

const (
	// effort limits a search, in node visits. The first half is for the domains, so that the whole cluster is always tried.
	effort = 400_000
	// passes limits one feasibility check of a gang of several shapes to that many visits per shape and node, at least fewest in all. A
	// check that hits the limit counts as infeasible.
	passes = 4
	fewest = 10_000
	// exactUnits is the most units for which all alternatives are compared. With more, the most expensive units that can stay together are
	// kept first.
	exactUnits = 12
)

// Selection is the units to preempt, and the gang's placement after that.
type Selection struct {
	// Victims are the units to preempt, by index; none if the gang fits once terminating units have ended.
	Victims []int
	// Assignments are the gang's new ones, by slot.
	Assignments []gang.Assignment
	// Domain is the narrowest one that holds all assignments, such as "rack a/r1"; empty: none.
	Domain string
	Cost   Cost
	// Truncated: the search reached its limit, so there may be a cheaper selection.
	Truncated bool
}

// SelectVictims selects the units to preempt so that the gang fits. ok is false if it does not fit even without all units, or only
// by violating a disruption budget. Nothing is preempted for the gang's surplus.
func SelectVictims(w World, g gang.Gang) (Selection, bool) {
	g, needs := g.Minimum()
	if !needs {
		return Selection{}, false
	}
	s := &search{w: &w, by: w.index(), g: g, left: effort / 2}
	all := w.all(s.by)
	if !s.tryPlace(all) {
		return Selection{}, false
	}
	if s.tryTerminatingOnly(all) {
		return s.best, true
	}
	if !slices.ContainsFunc(g.Members, func(m gang.Member) bool { return m.Node != "" }) {
		s.domains(all.tree)
	}
	s.left += effort / 2
	s.among(all)
	if !s.found {
		return Selection{}, false
	}
	s.best.Truncated = s.left < 0
	return s.best, true
}

type search struct {
	w  *World
	by *index
	g  gang.Gang
	// x is the world being searched; order are its units, the most expensive first; gone those to preempt.
	x     *world
	order []int
	gone  []int
	spent map[int]int
	// left is the remaining effort.
	left  int
	found bool
	best  Selection
}

// tryPlace reports whether the gang fits now.
func (s *search) tryPlace(x *world) bool {
	pass := max(1, len(s.g.Roles)) * x.tree.Len()
	_, refusal, looked := gang.PlaceWithin(x.tree, s.g, max(fewest, passes*(pass+len(s.g.Members))))
	s.left -= pass + looked
	return refusal == nil
}

// tryTerminatingOnly reports whether the gang fits once the terminating units are gone and all others stay.
func (s *search) tryTerminatingOnly(x *world) bool {
	units := x.unitsHere()
	for _, u := range units {
		if !s.w.Units[u].Terminating {
			x.put(u)
		}
	}
	ok := s.tryPlace(x)
	if ok {
		s.x, s.gone = x, nil
		s.record(Cost{})
	}
	for _, u := range units {
		if !s.w.Units[u].Terminating {
			x.take(u)
		}
	}
	return ok
}

// domains searches each domain separately, narrow ones first: they are small, and their results prune the search of wide ones.
func (s *search) domains(tree *topology.Tree) {
	for level := len(tree.Levels()) - 1; level >= 0; level-- {
		for _, d := range tree.Domains(level) {
			if s.left < 0 || tree.Size(d) == tree.Len() {
				continue
			}
			names := make([]string, 0, tree.Size(d))
			for i := range tree.Within(d) {
				names = append(names, tree.Name(i))
			}
			if x := s.w.within(s.by, names); s.tryPlace(x) {
				s.among(x)
			}
		}
	}
}

// among searches one world in which the gang fits without all units.
func (s *search) among(x *world) {
	s.x, s.gone, s.spent, s.order = x, nil, map[int]int{}, nil
	for _, u := range x.unitsHere() {
		if !s.w.Units[u].Terminating {
			s.order = append(s.order, u)
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return s.dearer(a, b) })
	k := 0
	if len(s.order) > exactUnits {
		k = s.protectCostly()
	}
	s.descend(k, Cost{})
	for _, u := range s.order[:k] {
		x.take(u)
	}
}

func (s *search) dearer(a, b int) int {
	u, v := &s.w.Units[a], &s.w.Units[b]
	return cmp.Or(
		cmp.Compare(v.Priority, u.Priority),
		cmp.Compare(v.LostWork, u.LostWork),
		cmp.Compare(len(v.Pods), len(u.Pods)),
		cmp.Compare(u.Name, v.Name),
	)
}

// protectCostly puts back the most expensive units while the gang still fits beside all of them, and returns how many.
func (s *search) protectCostly() int {
	at := 0
	low, high := 0, len(s.order) // the gang fits beside low of them, and not beside high+1
	for low < high {
		mid := (low + high + 1) / 2
		for ; at < mid; at++ {
			s.x.put(s.order[at])
		}
		for ; at > mid; at-- {
			s.x.take(s.order[at-1])
		}
		if s.tryPlace(s.x) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	for ; at > low; at-- {
		s.x.take(s.order[at-1])
	}
	return low
}

// descend decides about the kth unit and all after it. The units before it are on their nodes or preempted; the others are off their nodes,
// and the gang fits.
func (s *search) descend(k int, cost Cost) {
	if s.found && cost.Compare(s.best.Cost) >= 0 {
		return
	}
	if k == len(s.order) {
		s.record(cost)
		return
	}
	u := s.order[k]
	if s.left >= 0 {
		s.x.put(u)
		if s.tryPlace(s.x) {
			s.descend(k+1, cost)
		}
		s.x.take(u)
		if s.left < 0 && s.found {
			return
		}
	}
	if s.spend(u, 1) {
		s.gone = append(s.gone, u)
		s.descend(k+1, cost.with(&s.w.Units[u]))
		s.gone = s.gone[:len(s.gone)-1]
	}
	s.spend(u, -1)
}

// spend charges a unit's pods to the disruption budgets; false: the budgets do not allow it.
func (s *search) spend(u, sign int) bool {
	ok := true
	for b, n := range s.w.Units[u].Budgets {
		s.spent[b] += sign * n
		ok = ok && s.spent[b] <= s.w.Allowed[b]
	}
	return ok
}

// record stores the present state as the best selection.
func (s *search) record(cost Cost) {
	p, refusal := gang.Place(s.x.tree, s.g)
	if refusal != nil {
		return
	}
	c := Selection{Victims: slices.Sorted(slices.Values(s.gone)), Assignments: assignments(&s.g, p), Cost: cost}
	c.Domain = DomainOf(s.x.tree, c.Assignments)
	s.best, s.found = c, true
}
