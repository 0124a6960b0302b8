package preemption

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"holdfast.dev/holdfast/gang"
)

// Freed is a domain that would be entirely free if some pods were moved.
type Freed struct {
	Level, Domain string
	// Nodes is how many nodes the domain has, Used how many of them are used now.
	Nodes, Used int
	// Moves are the moves that free it.
	Moves []Move
	// Pods is the number of moved pods.
	Pods int
}

// Move is the move of one unit.
type Move struct {
	Unit string
	// Assignments are its pods' new nodes; Member.Node is the present one.
	Assignments []gang.Assignment
}

// moveEffort bounds a search for moves, in node visits.
const moveEffort = 4_000_000

// Defragment returns, by level from the widest, the domains that moves could free entirely: those with the fewest pods to move first, at
// most that many per level. Pods move to domains that are not entirely free. It uses only counts: it does not check other reasons for which
// a node refuses a pod, nor the topology constraints of the moved gangs. If a level is named, only that one is searched.
func Defragment(w World, of string, most int) (freed []Freed, stopped bool) {
	x := w.all(w.index())
	for u := range w.Units {
		if !w.Units[u].Terminating {
			x.put(u)
		}
	}
	left := moveEffort
	for level, l := range x.tree.Levels() {
		if of != "" && l.Name != of {
			continue
		}
		var broken []crowd
		whole := x.whole(level)
		for _, d := range x.tree.Domains(level) {
			if c, ok := x.crowd(d, whole); ok {
				broken = append(broken, c)
			}
		}
		slices.SortStableFunc(broken, func(a, b crowd) int {
			return cmp.Or(cmp.Compare(len(a.who), len(b.who)), cmp.Compare(b.f.Nodes, a.f.Nodes))
		})
		here := 0
		for _, c := range broken {
			if here == most || left < 0 {
				stopped = stopped || left < 0
				break
			}
			if f, ok := x.free(c, &left); ok {
				f.Level = l.Name
				freed = append(freed, f)
				here++
			}
		}
	}
	return freed, stopped
}

// crowd are the pods that would have to move out of a domain, and the nodes that they may not use.
type crowd struct {
	f   Freed
	who []podRef
	out map[string]gang.Cause
}

// whole returns the nodes of a level's whole domains: using one to free another gains nothing.
func (x *world) whole(level int) map[string]gang.Cause {
	all := map[string]gang.Cause{}
	for _, d := range x.tree.Domains(level) {
		if x.tree.Whole(d) {
			for i := range x.tree.Within(d) {
				all[x.tree.Name(i)] = gang.Cause{Kind: gang.Refused, Name: "to stay whole"}
			}
		}
	}
	return all
}

// crowd returns the pods in a domain; ok is false if there are none, or one cannot be moved.
func (x *world) crowd(d int, whole map[string]gang.Cause) (c crowd, ok bool) {
	c = crowd{f: Freed{Domain: x.tree.Path(d), Nodes: x.tree.Size(d)}, out: maps.Clone(whole)}
	for i := range x.tree.Within(d) {
		name := x.tree.Name(i)
		c.out[name] = gang.Cause{Kind: gang.Refused, Name: "to be freed"}
		if !x.tree.Used(i) {
			continue
		}
		c.f.Used++
		on := 0
		for _, h := range x.on[name] {
			if x.of.Units[h.unit].Pods[h.pod].Devices {
				c.who = append(c.who, h)
				on++
			}
		}
		if on == 0 || x.base[name].Used {
			return c, false // a pod of no unit uses it, or will
		}
	}
	only := len(x.tree.Domains(x.tree.LevelOf(d))) == 1
	return c, c.f.Used > 0 && !(only && c.f.Used == c.f.Nodes)
}

// free finds places elsewhere for all pods in a domain; it leaves the tree unchanged.
func (x *world) free(c crowd, left *int) (Freed, bool) {
	f := c.f
	defer x.tree.Undo(x.tree.Mark())
	units, order := map[int][]int{}, []int(nil)
	for _, h := range c.who {
		if units[h.unit] == nil {
			order = append(order, h.unit)
		}
		units[h.unit] = append(units[h.unit], h.pod)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(units[b]), len(units[a])), cmp.Compare(x.of.Units[a].Name, x.of.Units[b].Name))
	})
	for _, u := range order {
		*left -= x.tree.Len()
		m, ok := x.move(u, units[u], c.out)
		if !ok {
			return f, false
		}
		f.Moves = append(f.Moves, m)
		f.Pods += len(m.Assignments)
	}
	return f, true
}

// move finds places for pods of a unit outside of the domain, and takes them.
func (x *world) move(u int, pods []int, out map[string]gang.Cause) (Move, bool) {
	unit := &x.of.Units[u]
	g := gang.Gang{Size: len(pods)}
	roles := map[string]int{}
	for k, p := range pods {
		key := fmt.Sprint(unit.Pods[p].Resources) // maps are printed in the order of keys
		role, known := roles[key]
		if !known {
			role = len(g.Roles)
			roles[key] = role
			g.Roles = append(g.Roles, gang.Role{Requests: unit.Pods[p].Resources, Out: out})
		}
		g.Topology.Whole = g.Topology.Whole || unit.Pods[p].Exclusive
		g.Members = append(g.Members, gang.Member{Slot: k, Name: unit.Pods[p].Node, Role: role})
	}
	placed, refusal := gang.Place(x.tree, g)
	if refusal != nil {
		return Move{}, false
	}
	for _, s := range placed.Assignments {
		if i, ok := x.tree.Find(s.Node); ok {
			what := unit.Pods[pods[s.Slot]].Resources
			x.tree.Force(i, what)
			for g.Topology.Whole && x.tree.Take(i, what) {
			}
		}
	}
	return Move{Unit: unit.Name, Assignments: placed.Assignments}, true
}
