// Package topology holds the free resources of a cluster's nodes and of the domains of its fabric. For a shape that was
// queried before, the change of one node updates only that node's domains. Trials can be reverted: Undo releases
// exactly what was taken since a Mark. Take never makes a node negative. Nodes are visited by domain, widest first,
// then by name, in whatever order they were added.
//
// Resources are plain numbers by name (millicores, bytes, devices, pods). The package has no pods and no plugins: the
// caller excludes nodes for all other reasons.
package topology

import (
	"fmt"
	"iter"
	"slices"
)

// Resources are counts by resource name, such as {"cpu": 4000, "nvidia.com/gpu": 2}.
type Resources map[string]int64

// Node is one node as its caller describes it.
type Node struct {
	// Name is unique in a Tree.
	Name string
	// Domain is the node's place in the fabric, one value per level, widest first (zone, rack, NVLink domain).
	// An empty or missing value: the node is in no domain of that level.
	Domain []string
	// Free is what is allocatable and not requested. It may be below zero when a node shrank.
	Free Resources
	// Used: devices of the node are in use, so that its domains are not whole.
	Used bool
	// Tenants is the number of pods that exclude a gang that requests whole nodes.
	Tenants int
	// Exclusive: a pod there needs the whole node, so no other may be placed.
	Exclusive bool
	// Spares is how many nodes must stay free in the node's domain of level SparesAt, as promised to a gang.
	Spares   int
	SparesAt string
}

// Tree has the free resources of all nodes, and their domains. It is not safe for concurrent use.
//
// Nodes and domains have numbers that do not change while they exist: numbers of nodes are below Cap, 0 is the domain of all nodes.
type Tree struct {
	levels []Level
	nodes  []node
	// domains[0] is the root. gone and empty are numbers to be reused.
	domains     []domain
	gone, empty []int32
	// at is a node's number by name.
	at map[string]int32
	// columns numbers resources; a node's free counts are in that order.
	columns map[string]int
	// taken is what was taken and not reverted, oldest first.
	taken []entry
	// indexes are those of the shapes used last, latest first.
	indexes []*Index
}

type node struct {
	Node
	// free is by column; Node.Free is not stored.
	free []int64
	// leaf is the domain of the deepest level; takes counts entries of taken.
	leaf, takes int32
}

// domain is the set of nodes that share a value of a level, and all wider ones.
type domain struct {
	name   string
	parent int32
	// level is -1 for the root; children are sorted by name, and so are nodes, which only the deepest level has.
	level           int32
	children, nodes []int32
	// size counts nodes below, used those with used devices, claimed those with Spares or Exclusive.
	size, used, claimed int32
}

// entry is a node's state before something was taken.
type entry struct {
	node int32
	what Resources
	// use is 1 if the node counts as used because of it. was, if set, is the former occupancy.
	use int32
	was *occupancy
}

// occupancy describes the pods on a node.
type occupancy struct {
	tenants   int
	exclusive bool
	spares    int
	sparesAt  string
}

// New returns a Tree of the given nodes. New panics if two nodes have one name.
func New(levels []Level, nodes ...Node) *Tree {
	t := &Tree{
		levels:  slices.Clone(levels),
		at:      make(map[string]int32, len(nodes)),
		columns: map[string]int{},
		domains: []domain{{parent: -1, level: -1}},
	}
	t.nodes = make([]node, 0, len(nodes))
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, order) // so that each is appended to its siblings
	for _, n := range sorted {
		t.insert(n)
	}
	if len(t.at) != len(nodes) {
		panic("topology: two nodes of the same name")
	}
	return t
}

// Set adds or replaces a node. Nothing may be taken.
func (t *Tree) Set(n Node) {
	t.mustRest("set")
	i, ok := t.at[n.Name]
	if ok && t.samePlace(int(i), n.Domain) {
		t.fill(i, n)
		return
	}
	t.Remove(n.Name)
	t.insert(n)
}

// Remove removes a node; an unknown name changes nothing. Nothing may be taken.
func (t *Tree) Remove(name string) {
	t.mustRest("remove")
	i, ok := t.at[name]
	if !ok {
		return
	}
	n := &t.nodes[i]
	delete(t.at, name)
	t.count(n.leaf, -1, -flag(n.used()), -flag(n.claimed()))
	for _, x := range t.indexes {
		x.put(t, i, 0)
	}
	leaf := &t.domains[n.leaf]
	leaf.nodes = slices.DeleteFunc(leaf.nodes, func(k int32) bool { return k == i })
	t.prune(n.leaf)
	t.nodes[i] = node{}
	t.gone = append(t.gone, i)
}

func (t *Tree) insert(n Node) {
	var i int32
	if last := len(t.gone) - 1; last >= 0 {
		i, t.gone = t.gone[last], t.gone[:last]
	} else {
		i = int32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
	}
	t.nodes[i].leaf = t.leafOf(n.Domain)
	t.at[n.Name] = i
	leaf := &t.domains[t.nodes[i].leaf]
	at, _ := slices.BinarySearchFunc(leaf.nodes, n.Name, func(k int32, name string) int { return compare(t.nodes[k].Name, name) })
	leaf.nodes = slices.Insert(leaf.nodes, at, i)
	t.count(t.nodes[i].leaf, 1, 0, 0)
	t.fill(i, n)
}

// fill sets the state of a node that is already in its domain.
func (t *Tree) fill(i int32, n Node) {
	k := &t.nodes[i]
	used, promised := flag(k.used()), flag(k.claimed())
	k.Node, k.takes = n, 0
	k.Free, k.Domain = nil, slices.Clone(n.Domain)
	clear(k.free)
	for name, v := range n.Free {
		c := t.column(name)
		for len(k.free) <= c {
			k.free = append(k.free, 0)
		}
		k.free[c] = v
	}
	t.count(k.leaf, 0, flag(k.used())-used, flag(k.claimed())-promised)
	for _, x := range t.indexes {
		x.update(t, i)
	}
}

func (n *node) used() bool    { return n.Used || n.takes > 0 }
func (n *node) claimed() bool { return n.Spares > 0 || n.Exclusive }

// count adds a change of counts to a domain and the wider ones.
func (t *Tree) count(d, size, used, claimed int32) {
	if size == 0 && used == 0 && claimed == 0 {
		return
	}
	for ; d >= 0; d = t.domains[d].parent {
		t.domains[d].size += size
		t.domains[d].used += used
		t.domains[d].claimed += claimed
	}
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// Len returns the number of nodes; their numbers are below Cap.
func (t *Tree) Len() int { return len(t.at) }

// Cap returns a value above the number of every node.
func (t *Tree) Cap() int { return len(t.nodes) }

// All yields the nodes in the Tree's order.
func (t *Tree) All() iter.Seq[int] { return t.Within(Root) }

// Within yields the nodes of a domain in the Tree's order.
func (t *Tree) Within(d int) iter.Seq[int] {
	return func(yield func(int) bool) { t.walk(int32(d), yield) }
}

func (t *Tree) walk(d int32, yield func(int) bool) bool {
	for _, i := range t.domains[d].nodes {
		if !yield(int(i)) {
			return false
		}
	}
	for _, c := range t.domains[d].children {
		if !t.walk(c, yield) {
			return false
		}
	}
	return true
}

// Name returns the name of a node.
func (t *Tree) Name(i int) string { return t.nodes[i].Name }

// Find returns the number of a node.
func (t *Tree) Find(name string) (int, bool) {
	i, ok := t.at[name]
	return int(i), ok
}

// Free returns the free amount of one resource on a node.
func (t *Tree) Free(i int, resource string) int64 {
	c, ok := t.columns[resource]
	if !ok {
		return 0
	}
	return t.nodes[i].at(c)
}

func (n *node) at(column int) int64 {
	if column >= len(n.free) {
		return 0
	}
	return n.free[column]
}

// Room returns how many times r can be taken from a node, at most limit.
func (t *Tree) Room(i int, r Resources, limit int) int {
	room := int64(limit)
	for name, want := range r {
		if want > 0 {
			room = min(room, max(t.Free(i, name), 0)/want)
		}
	}
	return int(room)
}

// Lacks returns the resources of r of which a node has too little, sorted.
func (t *Tree) Lacks(i int, r Resources) []string {
	var lacks []string
	for name, want := range r {
		if want > 0 && t.Free(i, name) < want {
			lacks = append(lacks, name)
		}
	}
	slices.Sort(lacks)
	return lacks
}

// Used reports whether devices of a node are in use; Tenants and Exclusive return those fields of Node.
func (t *Tree) Used(i int) bool      { return t.nodes[i].used() }
func (t *Tree) Tenants(i int) int    { return t.nodes[i].Tenants }
func (t *Tree) Exclusive(i int) bool { return t.nodes[i].Exclusive }

// Promised returns the node's Spares and SparesAt.
func (t *Tree) Promised(i int) (int, string) { return t.nodes[i].Spares, t.nodes[i].SparesAt }

// Mark is a point to return to with Undo.
type Mark int

// Mark returns the present point.
func (t *Tree) Mark() Mark { return Mark(len(t.taken)) }

// Take takes r from a node and reports whether that was possible; if not, nothing changed.
func (t *Tree) Take(i int, r Resources) bool {
	if t.Room(i, r, 1) == 0 {
		return false
	}
	t.Force(i, r)
	return true
}

// Force takes r from a node even if too little is left, for resources that are already held.
func (t *Tree) Force(i int, r Resources) {
	t.taken = append(t.taken, entry{node: int32(i), what: r, use: 1})
	t.add(int32(i), r, -1, 1)
}

// Usage is what a pod on its way to a node will use there: resources, and its effect on Node's fields. A pod that is no Tenant does not
// count as use of the node.
type Usage struct {
	Resources         Resources
	Tenant, Exclusive bool
	Spares            int
	SparesAt          string
}

// Assumed is a Usage on a node, by the node's name.
type Assumed struct {
	Node  string
	Usage Usage
}

// Assume is Force for a pod on its way to the node.
func (t *Tree) Assume(i int, h Usage) {
	n := &t.nodes[i]
	was := occupancy{n.Tenants, n.Exclusive, n.Spares, n.SparesAt}
	will := was
	will.tenants += int(flag(h.Tenant))
	will.exclusive = will.exclusive || h.Exclusive
	if h.Spares > will.spares {
		will.spares, will.sparesAt = h.Spares, h.SparesAt
	}
	t.taken = append(t.taken, entry{node: int32(i), what: h.Resources, use: flag(h.Tenant), was: &was})
	t.setOccupancy(int32(i), will)
	t.add(int32(i), h.Resources, -1, flag(h.Tenant))
}

// setOccupancy replaces a node's occupancy; add must follow, which counts the node again.
func (t *Tree) setOccupancy(i int32, w occupancy) {
	n := &t.nodes[i]
	claimed := flag(n.claimed())
	n.Tenants, n.Exclusive, n.Spares, n.SparesAt = w.tenants, w.exclusive, w.spares, w.sparesAt
	t.count(n.leaf, 0, 0, flag(n.claimed())-claimed)
}

// Undo reverts everything taken since the mark, newest first.
func (t *Tree) Undo(m Mark) {
	for len(t.taken) > int(m) {
		last := t.taken[len(t.taken)-1]
		t.taken = t.taken[:len(t.taken)-1]
		if last.was != nil {
			t.setOccupancy(last.node, *last.was)
		}
		t.add(last.node, last.what, 1, last.use)
	}
}

func (t *Tree) add(i int32, r Resources, sign int64, use int32) {
	n := &t.nodes[i]
	for name, v := range r {
		if v <= 0 {
			continue
		}
		c := t.column(name)
		for len(n.free) <= c {
			n.free = append(n.free, 0)
		}
		n.free[c] += sign * v
	}
	used := flag(n.used())
	n.takes -= int32(sign) * use
	t.count(n.leaf, 0, flag(n.used())-used, 0)
	for _, x := range t.indexes {
		x.update(t, i)
	}
}

func (t *Tree) column(name string) int {
	c, ok := t.columns[name]
	if !ok {
		c = len(t.columns)
		t.columns[name] = c
	}
	return c
}

func (t *Tree) mustRest(verb string) {
	if len(t.taken) > 0 {
		panic(fmt.Sprintf("topology: %s while %d takings are not undone", verb, len(t.taken)))
	}
}
