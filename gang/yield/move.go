package yield

import (
	"cmp"
	"fmt"
	"slices"

	"holdfast.dev/holdfast/gang"
)

// Freed is a domain that would be whole again if some pods were elsewhere.
type Freed struct {
	Level, Domain string
	// Nodes is how many nodes the domain has, Used how many of them are used now.
	Nodes, Used int
	// Moves say who would go where.
	Moves []Move
	// Pods is how many pods that are.
	Pods int
}

// Move is what one unit would have to do.
type Move struct {
	Unit string
	// Seats are its pods' new places; Member is the node that the pod is on now.
	Seats []gang.Seat
}

// Defragment lists, by level from the widest, the domains that could be whole if pods were moved to where there is
// room, those with the fewest pods to move first, at most so many for a level. It goes by counts alone: whether a node
// takes a pod for other reasons, and whether its gang may be torn, is not looked at.
func Defragment(w World, most int) []Freed {
	x := w.within(nil)
	for u := range w.Units {
		x.put(u)
	}
	var all []Freed
	for level, l := range x.tree.Levels() {
		var here []Freed
		for _, d := range x.tree.Domains(level) {
			if f, ok := x.free(d); ok {
				f.Level = l.Name
				here = append(here, f)
			}
		}
		slices.SortStableFunc(here, func(a, b Freed) int { return cmp.Or(cmp.Compare(a.Pods, b.Pods), cmp.Compare(b.Nodes, a.Nodes)) })
		all = append(all, here[:min(len(here), most)]...)
	}
	return all
}

// free looks for places elsewhere for all who are in a domain; the tree is as it was afterwards.
func (x *world) free(d int) (Freed, bool) {
	inside := map[string]gang.Cause{}
	f := Freed{Domain: x.tree.Path(d), Nodes: x.tree.Size(d)}
	stuck := false
	var who []held
	for i := range x.tree.Within(d) {
		name := x.tree.Name(i)
		inside[name] = gang.Cause{Kind: gang.Refused, Name: "to be freed"}
		if !x.tree.Used(i) {
			continue
		}
		f.Used++
		on := 0
		for _, h := range x.on[name] {
			if x.of.Units[h.unit].Pods[h.pod].Devices {
				who = append(who, h)
				on++
			}
		}
		stuck = stuck || on == 0 // somebody who is no unit uses it
	}
	if stuck || f.Used == 0 || f.Used == f.Nodes && len(x.tree.Domains(x.tree.LevelOf(d))) == 1 {
		return f, false
	}
	defer x.tree.Undo(x.tree.Mark())
	units, order := map[int][]int{}, []int(nil)
	for _, h := range who {
		if units[h.unit] == nil {
			order = append(order, h.unit)
		}
		units[h.unit] = append(units[h.unit], h.pod)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(units[b]), len(units[a])), cmp.Compare(x.of.Units[a].Name, x.of.Units[b].Name))
	})
	for _, u := range order {
		m, ok := x.move(u, units[u], inside)
		if !ok {
			return f, false
		}
		f.Moves = append(f.Moves, m)
		f.Pods += len(m.Seats)
	}
	return f, true
}

// move finds places for pods of a unit outside, and takes them.
func (x *world) move(u int, pods []int, inside map[string]gang.Cause) (Move, bool) {
	unit := &x.of.Units[u]
	g := gang.Gang{Size: len(pods)}
	roles := map[string]int{}
	for k, p := range pods {
		key := fmt.Sprint(unit.Pods[p].What) // maps are written by key
		role, known := roles[key]
		if !known {
			role = len(g.Roles)
			roles[key] = role
			g.Roles = append(g.Roles, gang.Role{Requests: unit.Pods[p].What, Out: inside})
		}
		g.Topology.Whole = g.Topology.Whole || unit.Pods[p].Closed
		g.Members = append(g.Members, gang.Member{Slot: k, Name: unit.Pods[p].Node, Role: role})
	}
	placed, no := gang.Place(x.tree, g)
	if no != nil {
		return Move{}, false
	}
	for _, s := range placed.Seats {
		if i, ok := x.tree.Find(s.Node); ok {
			what := unit.Pods[pods[s.Slot]].What
			x.tree.Force(i, what)
			for g.Topology.Whole && x.tree.Take(i, what) {
			}
		}
	}
	return Move{Unit: unit.Name, Seats: placed.Seats}, true
}
