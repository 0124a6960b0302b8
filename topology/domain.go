package topology

import (
	"cmp"
	"slices"
	"strings"
)

// Root is the domain of all nodes.
const Root = 0

// Levels are the Tree's levels, widest first.
func (t *Tree) Levels() []Level { return t.levels }

// FindLevel returns a level by its name or its label key.
func (t *Tree) FindLevel(name string) (int, bool) {
	i := slices.IndexFunc(t.levels, func(l Level) bool { return l.Name == name || l.Key == name })
	return i, i >= 0
}

// LevelOf returns the level of a domain, -1 for the root.
func (t *Tree) LevelOf(d int) int { return int(t.domains[d].level) }

// Parent returns the next wider domain, -1 above the root.
func (t *Tree) Parent(d int) int { return int(t.domains[d].parent) }

// Children returns the next narrower domains, in the Tree's order; Nodes returns those of a domain of the deepest level, by name. Callers
// must not change or store the results.
func (t *Tree) Children(d int) []int32 { return t.domains[d].children }
func (t *Tree) Nodes(d int) []int32    { return t.domains[d].nodes }

// Leaf returns the deepest domain of a node.
func (t *Tree) Leaf(i int) int { return int(t.nodes[i].leaf) }

// Ancestor returns the domain of a level that contains a domain or is the same, the root for level -1.
func (t *Tree) Ancestor(d, level int) int {
	for t.LevelOf(d) > level {
		d = t.Parent(d)
	}
	return d
}

// Named reports whether a domain has a name: nodes without a level's label share an unnamed one, which says nothing about their distance.
// The root counts as named.
func (t *Tree) Named(d int) bool { return d == Root || t.domains[d].name != "" }

// Size returns the number of nodes of a domain; Whole reports whether none of their devices is used.
func (t *Tree) Size(d int) int   { return int(t.domains[d].size) }
func (t *Tree) Whole(d int) bool { return t.domains[d].used == 0 }

// Claimed reports whether any node of a domain promises spares or is exclusive.
func (t *Tree) Claimed(d int) bool { return t.domains[d].claimed > 0 }

// Path returns the name of a domain after those of the wider ones, such as "zone-a/rack-3".
func (t *Tree) Path(d int) string {
	var names []string
	for ; d > Root; d = t.Parent(d) {
		if name := t.domains[d].name; name != "" {
			names = append(names, name)
		}
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

// Domains returns the named domains of a level in the Tree's order; -1: the root.
func (t *Tree) Domains(level int) []int { return t.atLevel(level, true) }

// Unnamed returns the unnamed domains of a level.
func (t *Tree) Unnamed(level int) []int { return t.atLevel(level, false) }

func (t *Tree) atLevel(level int, named bool) []int {
	var all []int
	var walk func(d int32)
	walk = func(d int32) {
		if int(t.domains[d].level) == level {
			if t.Named(int(d)) == named {
				all = append(all, int(d))
			}
			return
		}
		for _, c := range t.domains[d].children {
			walk(c)
		}
	}
	walk(Root)
	return all
}

// leafOf returns the domain of a place in the fabric, and creates it if needed.
func (t *Tree) leafOf(place []string) int32 {
	d := int32(Root)
	for level := range t.levels {
		d = t.child(d, int32(level), value(place, level))
	}
	return d
}

func (t *Tree) child(d, level int32, name string) int32 {
	at, found := slices.BinarySearchFunc(
		t.domains[d].children,
		name,
		func(c int32, name string) int { return compare(t.domains[c].name, name) },
	)
	if found {
		return t.domains[d].children[at]
	}
	var c int32
	if last := len(t.empty) - 1; last >= 0 {
		c, t.empty = t.empty[last], t.empty[:last]
	} else {
		c = int32(len(t.domains))
		t.domains = append(t.domains, domain{})
		for _, x := range t.indexes {
			x.grow(len(t.domains))
		}
	}
	t.domains[c] = domain{name: name, parent: d, level: level}
	t.domains[d].children = slices.Insert(t.domains[d].children, at, c)
	return c
}

// prune removes a domain without nodes, and the wider ones that become empty.
func (t *Tree) prune(d int32) {
	for d != Root && t.domains[d].size == 0 {
		parent := t.domains[d].parent
		p := &t.domains[parent]
		p.children = slices.DeleteFunc(p.children, func(c int32) bool { return c == d })
		t.domains[d] = domain{parent: -1}
		t.empty = append(t.empty, d)
		d = parent
	}
}

func (t *Tree) samePlace(i int, place []string) bool {
	d := t.Leaf(i)
	for level := len(t.levels) - 1; level >= 0; level-- {
		if t.domains[d].name != value(place, level) {
			return false
		}
		d = t.Parent(d)
	}
	return true
}

func value(place []string, level int) string {
	if level < len(place) {
		return place[level]
	}
	return ""
}

func compare(a, b string) int { return cmp.Compare(a, b) }

func order(a, b Node) int {
	return cmp.Or(slices.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}

// Compare orders two nodes in the Tree's order.
func (t *Tree) Compare(i, j int) int {
	a, b := t.nodes[i].leaf, t.nodes[j].leaf
	if a == b {
		return compare(t.nodes[i].Name, t.nodes[j].Name)
	}
	for t.domains[a].parent != t.domains[b].parent {
		a, b = t.domains[a].parent, t.domains[b].parent
	}
	return compare(t.domains[a].name, t.domains[b].name)
}
