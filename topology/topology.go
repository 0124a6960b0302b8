// Package topology counts what is free on the nodes of a cluster. It promises that trying is free: what
// was taken since a Mark is given back exactly by Undo, a node never goes below zero, and nodes are
// always visited in one order (by fabric domain, then by name), whatever order they were told in.
//
// A quantity is a plain number by resource name (millicores, bytes, devices, pods). The package knows
// nothing of pods or plugins: what else keeps a pod off a node is said by whoever asks.
package topology

import (
	"cmp"
	"fmt"
	"slices"
)

// Resources are counts by resource name, such as {"cpu": 4000, "nvidia.com/gpu": 2}.
type Resources map[string]int64

// Node is one node as its adapter sees it.
type Node struct {
	// Name is unique in a Tree.
	Name string
	// Domain is the node's place in the fabric, widest first (zone, rack, NVLink domain); empty: unknown.
	Domain []string
	// Free is what is allocatable and not requested. It may be below zero when a node shrank.
	Free Resources
}

// Tree is the free counts of all nodes. It is not safe for concurrent use.
type Tree struct {
	// nodes is sorted by Domain, then Name; Free belongs to the Tree.
	nodes []Node
	// at is the position in nodes by name.
	at map[string]int
	// taken is what was taken and not undone, oldest first.
	taken []taking
}

type taking struct {
	node string
	what Resources
}

// New returns a Tree of the given nodes. Two nodes of one name are a broken invariant.
func New(nodes ...Node) *Tree {
	t := &Tree{at: make(map[string]int, len(nodes))}
	t.nodes = make([]Node, 0, len(nodes))
	for _, n := range nodes {
		t.nodes = append(t.nodes, n.clone())
	}
	slices.SortFunc(t.nodes, order)
	t.index(0)
	if len(t.at) != len(t.nodes) {
		panic("topology: two nodes of the same name")
	}
	return t
}

// Set puts a node in, or replaces the node of that name. It must not be called while something is taken.
func (t *Tree) Set(n Node) {
	t.mustRest("set")
	if i, ok := t.at[n.Name]; ok {
		if slices.Equal(t.nodes[i].Domain, n.Domain) {
			t.nodes[i] = n.clone()
			return
		}
		t.Remove(n.Name)
	}
	i, _ := slices.BinarySearchFunc(t.nodes, n, order)
	t.nodes = slices.Insert(t.nodes, i, n.clone())
	t.index(i)
}

// Remove takes a node out; an unknown name changes nothing. It must not be called while something is taken.
func (t *Tree) Remove(name string) {
	t.mustRest("remove")
	i, ok := t.at[name]
	if !ok {
		return
	}
	delete(t.at, name)
	t.nodes = slices.Delete(t.nodes, i, i+1)
	t.index(i)
}

// Len is the number of nodes.
func (t *Tree) Len() int { return len(t.nodes) }

// Name is the name of the i-th node in the Tree's order.
func (t *Tree) Name(i int) string { return t.nodes[i].Name }

// Find returns the position of a node.
func (t *Tree) Find(name string) (int, bool) {
	i, ok := t.at[name]
	return i, ok
}

// Free returns what is free of one resource on the i-th node.
func (t *Tree) Free(i int, resource string) int64 { return t.nodes[i].Free[resource] }

// Room is how many times r can be taken from the i-th node, at most limit.
func (t *Tree) Room(i int, r Resources, limit int) int {
	room := int64(limit)
	for name, want := range r {
		if want <= 0 {
			continue
		}
		room = min(room, max(t.nodes[i].Free[name], 0)/want)
	}
	return int(room)
}

// Lacks names the resources that the i-th node has too little of for r, sorted.
func (t *Tree) Lacks(i int, r Resources) []string {
	var lacks []string
	for name, want := range r {
		if want > 0 && t.nodes[i].Free[name] < want {
			lacks = append(lacks, name)
		}
	}
	slices.Sort(lacks)
	return lacks
}

// Mark is a point to return to with Undo.
type Mark int

// Mark returns the present point.
func (t *Tree) Mark() Mark { return Mark(len(t.taken)) }

// Take takes r from the i-th node and reports whether that was possible; if not, nothing changed.
func (t *Tree) Take(i int, r Resources) bool {
	if t.Room(i, r, 1) == 0 {
		return false
	}
	t.Force(i, r)
	return true
}

// Force takes r from the i-th node even where too little is left, for what others hold already.
func (t *Tree) Force(i int, r Resources) {
	t.add(i, r, -1)
	t.taken = append(t.taken, taking{node: t.nodes[i].Name, what: r})
}

// Undo gives back everything that was taken since the mark, newest first.
func (t *Tree) Undo(m Mark) {
	for len(t.taken) > int(m) {
		last := t.taken[len(t.taken)-1]
		t.taken = t.taken[:len(t.taken)-1]
		t.add(t.at[last.node], last.what, 1)
	}
}

func (t *Tree) add(i int, r Resources, sign int64) {
	for name, n := range r {
		if n > 0 {
			t.nodes[i].Free[name] += sign * n
		}
	}
}

func (t *Tree) index(from int) {
	for i := from; i < len(t.nodes); i++ {
		t.at[t.nodes[i].Name] = i
	}
}

func (t *Tree) mustRest(verb string) {
	if len(t.taken) > 0 {
		panic(fmt.Sprintf("topology: %s while %d takings are not undone", verb, len(t.taken)))
	}
}

func (n Node) clone() Node {
	free := make(Resources, len(n.Free))
	for name, v := range n.Free {
		free[name] = v
	}
	return Node{Name: n.Name, Domain: slices.Clone(n.Domain), Free: free}
}

func order(a, b Node) int {
	return cmp.Or(slices.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}
