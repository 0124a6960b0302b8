package gang

import (
	"slices"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// view is the tree for one role: how many members each node and domain takes, without excluded nodes, spares and nodes of others.
type view struct {
	tree *topology.Tree
	// rooms is by node; places, its sum, and open, the number of nodes with room, are by domain. They belong to the tree's index until own
	// is set.
	rooms, places, open []int32
	own                 bool
	// spared are the nodes that are left free as spares, unlabelled those that are in no domain of the level of spares.
	spared, unlabelled []int
}

// newView returns the view for a role. Nodes with members of the gang do not count as used by others.
func newView(tree *topology.Tree, g Gang, role int, r rules) *view {
	what := g.Roles[role]
	index := tree.Index(topology.Shape{Requests: what.Requests, Whole: r.whole})
	v := &view{tree: tree, rooms: index.Room, places: index.Places, open: index.Open}
	if what.OutAll != nil {
		v.rooms, v.places, v.open, v.own = make([]int32, len(v.rooms)), make([]int32, len(v.places)), make([]int32, len(v.open)), true
		return v
	}
	var mine map[string]int
	if r.whole || tree.Claimed(topology.Root) {
		mine = g.held()
	}
	for name, members := range mine {
		i, ok := tree.Find(name)
		if ok && (tree.Exclusive(i) || r.whole) && tree.Tenants(i) <= members {
			v.set(i, index.Fits(tree, i))
		}
	}
	for name := range what.Out {
		if i, ok := tree.Find(name); ok {
			v.set(i, 0)
		}
	}
	v.keepPromises(what, mine)
	if r.spares > 0 && !g.standing() {
		sick := sickIn(tree, what, r.sparesAt)
		for _, d := range tree.Domains(r.sparesAt) {
			v.spare(d, r.spares-sick[d])
		}
		for _, d := range tree.Unnamed(r.sparesAt) {
			v.release(d)
		}
	}
	return v
}

// standing reports whether any member is already on a node.
func (g Gang) standing() bool {
	return slices.ContainsFunc(g.Members, func(m Member) bool { return m.Node != "" })
}

// held counts the gang's members by node.
func (g Gang) held() map[string]int {
	held := map[string]int{}
	for _, m := range g.Members {
		if m.Node != "" {
			held[m.Node]++
		}
	}
	return held
}

// keepPromises leaves free the spares that were promised to others.
func (v *view) keepPromises(role Role, mine map[string]int) {
	if !v.tree.Claimed(topology.Root) {
		return
	}
	promised := map[int]int{}
	var levels []int
	for i := range v.promisers(topology.Root) {
		n, name := v.tree.Promised(i)
		level, ok := v.tree.FindLevel(name)
		if !ok || mine[v.tree.Name(i)] > 0 {
			continue
		}
		d := v.tree.Ancestor(v.tree.Leaf(i), level)
		promised[d] = max(promised[d], n)
		if !slices.Contains(levels, level) {
			levels = append(levels, level)
		}
	}
	slices.Sort(levels)
	for _, level := range levels {
		sick := sickIn(v.tree, role, level)
		for _, d := range v.tree.Domains(level) {
			if n := promised[d]; n > 0 {
				v.spare(d, n-sick[d])
			}
		}
	}
}

// promisers yields the nodes of a domain that promise spares; it skips domains without any.
func (v *view) promisers(d int) func(func(int) bool) {
	return func(yield func(int) bool) { v.walkPromisers(d, yield) }
}

func (v *view) walkPromisers(d int, yield func(int) bool) bool {
	if !v.tree.Claimed(d) {
		return true
	}
	for _, i := range v.tree.Nodes(d) {
		if n, _ := v.tree.Promised(int(i)); n > 0 && !yield(int(i)) {
			return false
		}
	}
	for _, c := range v.tree.Children(d) {
		if !v.walkPromisers(int(c), yield) {
			return false
		}
	}
	return true
}

// sickIn counts, by domain of a level, the nodes that are excluded for a fault of their own.
func sickIn(tree *topology.Tree, role Role, level int) map[int]int {
	sick := map[int]int{}
	for name, cause := range role.Out {
		if i, ok := tree.Find(name); ok && cause.sick() {
			sick[tree.Ancestor(tree.Leaf(i), level)]++
		}
	}
	return sick
}

// sick reports whether a node excluded for the cause can return after a repair.
func (c Cause) sick() bool {
	return c.Kind == Cordoned || c.Kind == Unhealthy || (c.Kind == Tainted && strings.HasPrefix(c.Name, "node.kubernetes.io/"))
}

// spare leaves n nodes of a domain free: the last unused ones in the tree's order.
func (v *view) spare(d, n int) {
	if n <= 0 || v.places[d] == 0 {
		return
	}
	var candidates []int
	for i := range v.tree.Within(d) {
		if v.rooms[i] > 0 && !v.tree.Used(i) {
			candidates = append(candidates, i)
		}
	}
	for _, i := range candidates[max(0, len(candidates)-n):] {
		v.set(i, 0)
		v.spared = append(v.spared, i)
	}
}

// release excludes all nodes of a domain.
func (v *view) release(d int) {
	if v.places[d] == 0 {
		return
	}
	for i := range v.tree.Within(d) {
		if v.rooms[i] > 0 {
			v.set(i, 0)
			v.unlabelled = append(v.unlabelled, i)
		}
	}
}

// clone returns a copy that may be changed.
func (v *view) clone() *view {
	c := *v
	c.rooms, c.places, c.open, c.own = slices.Clone(v.rooms), slices.Clone(v.places), slices.Clone(v.open), true
	return &c
}

// set changes the room of a node and of its domains.
func (v *view) set(i, room int) {
	more := int32(room) - v.rooms[i]
	if more == 0 {
		return
	}
	if !v.own {
		v.rooms, v.places, v.open, v.own = slices.Clone(v.rooms), slices.Clone(v.places), slices.Clone(v.open), true
	}
	open := one(room > 0) - one(v.rooms[i] > 0)
	v.rooms[i] = int32(room)
	for d := v.tree.Leaf(i); d >= 0; d = v.tree.Parent(d) {
		v.places[d] += more
		v.open[d] += open
	}
}

func one(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
