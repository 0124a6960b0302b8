// Package topology keeps the free resources of a cluster's nodes and of the domains of its fabric. It promises:
// queries are cheap, because for a known shape the change of one node is carried up the tree at once and nothing is
// counted again; trials are free, because Undo releases exactly what was taken since a Mark, and a node never goes
// below zero; nodes are always visited in one order (by fabric domain, widest first, then by name), whatever the
// order of the input.
//
// A quantity is a plain number by resource name (millicores, bytes, devices, pods). The package does not use pods or
// plugins: the caller adds all other reasons that exclude a node.
package topology

import (
	"fmt"
	"iter"
	"slices"
)

// Resources are counts by resource name, such as {"cpu": 4000, "nvidia.com/gpu": 2}.
type Resources map[string]int64

// Node is one node as its adapter sees it.
type Node struct {
	// Name is unique in a Tree.
	Name string
	// Domain is the node's place in the fabric, one value per level, widest first (zone, rack, NVLink domain).
	// An empty or missing value: the node is in no domain of that level.
	Domain []string
	// Free is what is allocatable and not requested. It may be below zero when a node shrank.
	Free Resources
	// Used says that devices of the node are taken, so that its domains are not whole any more.
	Used bool
	// Tenants counts the pods that keep a gang away which wants whole nodes.
	Tenants int
	// Exclusive: a pod there needs the whole node, so no other may be placed.
	Exclusive bool
	// Spares are promised to somebody in the node's domain of level SparesAt: so many nodes stay free there.
	Spares   int
	SparesAt string
}

// Tree is the free counts of all nodes, and the domains they are in. It is not safe for concurrent use.
//
// Nodes and domains have numbers that stay while they exist: numbers of nodes are below Cap, 0 is the domain
// of all nodes.
type Tree struct {
	levels []Level
	nodes  []node
	// domains[0] is the root. gone and empty are numbers to be used again.
	domains     []domain
	gone, empty []int32
	// at is a node's number by name.
	at map[string]int32
	// columns numbers resources; a node's free counts are in that order.
	columns map[string]int
	// taken is what was taken and not undone, oldest first.
	taken []entry
	// indexes are of the shapes that were asked about last, the latest first.
	indexes []*Index
}

type node struct {
	Node
	// free is by column; Node.Free is not kept.
	free []int64
	// leaf is the domain of the deepest level; takes counts takings.
	leaf, takes int32
}

// domain is the set of nodes that share a value of a level, and all wider ones.
type domain struct {
	name   string
	parent int32
	// level is -1 for the root; children are sorted by name, and nodes, which only the deepest have, too.
	level           int32
	children, nodes []int32
	// size counts nodes below, used those of which devices are taken, claimed those with Spares or Exclusive.
	size, used, claimed int32
}

// entry is what was before something was taken.
type entry struct {
	node int32
	what Resources
	// use is 1 where the node counts as used for it. was, where set, is what was said of the node before.
	use int32
	was *occupancy
}

// occupancy is what is said of those who are on a node.
type occupancy struct {
	tenants   int
	exclusive bool
	spares    int
	sparesAt  string
}

// New returns a Tree of the given nodes. Two nodes of one name are a broken invariant.
func New(levels []Level, nodes ...Node) *Tree {
	t := &Tree{
		levels:  slices.Clone(levels),
		at:      make(map[string]int32, len(nodes)),
		columns: map[string]int{},
		domains: []domain{{parent: -1, level: -1}},
	}
	t.nodes = make([]node, 0, len(nodes))
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, order) // so that each is put last among its like
	for _, n := range sorted {
		t.insert(n)
	}
	if len(t.at) != len(nodes) {
		panic("topology: two nodes of the same name")
	}
	return t
}

// Set puts a node in, or replaces the node of that name. It must not be called while something is taken.
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

// Remove takes a node out; an unknown name changes nothing. It must not be called while something is taken.
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

// fill takes over what is said of a node that is in its domain already.
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

// count carries a change of counts up the tree.
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

// Len is the number of nodes; their numbers are below Cap.
func (t *Tree) Len() int { return len(t.at) }

// Cap is above the number of every node.
func (t *Tree) Cap() int { return len(t.nodes) }

// All lists the nodes in the Tree's order.
func (t *Tree) All() iter.Seq[int] { return t.Within(Root) }

// Within lists the nodes of a domain in the Tree's order.
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

// Name is the name of a node.
func (t *Tree) Name(i int) string { return t.nodes[i].Name }

// Find returns the number of a node.
func (t *Tree) Find(name string) (int, bool) {
	i, ok := t.at[name]
	return int(i), ok
}

// Free returns what is free of one resource on a node.
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

// Room is how many times r can be taken from a node, at most limit.
func (t *Tree) Room(i int, r Resources, limit int) int {
	room := int64(limit)
	for name, want := range r {
		if want > 0 {
			room = min(room, max(t.Free(i, name), 0)/want)
		}
	}
	return int(room)
}

// Lacks names the resources that a node has too little of for r, sorted.
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

// Used reports whether devices of a node are used; Tenants and Exclusive are those of Node.
func (t *Tree) Used(i int) bool      { return t.nodes[i].used() }
func (t *Tree) Tenants(i int) int    { return t.nodes[i].Tenants }
func (t *Tree) Exclusive(i int) bool { return t.nodes[i].Exclusive }

// Promised is the node's own promise of spares, with its level.
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

// Force takes r from a node even where too little is left, for what others hold already.
func (t *Tree) Force(i int, r Resources) {
	t.taken = append(t.taken, entry{node: int32(i), what: r, use: 1})
	t.add(int32(i), r, -1, 1)
}

// Usage is what a pod that is on its way to a node will mean there: What it takes, and what Node says of those who
// are there. One that is no Tenant does not count as use of the node.
type Usage struct {
	Resources         Resources
	Tenant, Exclusive bool
	Spares            int
	SparesAt          string
}

// Assumed is a Hold on a node, by the node's name.
type Assumed struct {
	Node  string
	Usage Usage
}

// Assume is Force for somebody who is on the way.
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

// setOccupancy replaces what is said of those on a node; add must follow, which counts the node anew.
func (t *Tree) setOccupancy(i int32, w occupancy) {
	n := &t.nodes[i]
	claimed := flag(n.claimed())
	n.Tenants, n.Exclusive, n.Spares, n.SparesAt = w.tenants, w.exclusive, w.spares, w.sparesAt
	t.count(n.leaf, 0, 0, flag(n.claimed())-claimed)
}

// Undo gives back everything that was taken since the mark, newest first.
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
