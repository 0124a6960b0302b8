package gang

import (
	"slices"

	"holdfast.dev/holdfast/topology"
)

// cost is the cost of a choice of nodes: a list of numbers, compared from the first on. Each of these has one number per level, from the
// widest down to the node:
//
//	near    domains used, at levels where closeness counts
//	damage  domains that were whole and are only partly used now
//	far     domains used, at the levels below
//	left    free places left in the used domains
//
// Costs of separate domains add up.
type cost []int32

// scale maps levels to positions in a cost.
type scale struct {
	width             int
	span, damage, lef []int
}

func newScale(levels, near int) scale {
	s := scale{width: 3 * (levels + 1)}
	next := 0
	take := func(from, to int) []int {
		var at []int
		for range to - from {
			at = append(at, next)
			next++
		}
		return at
	}
	nearby := take(0, min(near+1, levels+1))
	s.damage = take(0, levels+1)
	s.span = append(nearby, take(len(nearby), levels+1)...)
	s.lef = take(0, levels+1)
	return s
}

// plus adds the own cost of a domain or node of a level if m of its places are used.
func (s scale) plus(c cost, level, m, places int, whole bool) {
	c[s.span[level]]++
	if whole && m < places {
		c[s.damage[level]]++
	}
	c[s.lef[level]] += int32(places - m)
}

func (c cost) add(d cost) {
	for i, v := range d {
		c[i] += v
	}
}

func (c cost) less(d cost) bool { return slices.Compare(c, d) < 0 }

// sumLess reports whether a+b is less than c.
func sumLess(a, b, c cost) bool {
	for i := range c {
		if sum := a[i] + b[i]; sum != c[i] {
			return sum < c[i]
		}
	}
	return false
}

// own adds the own cost of domain d if m members are in it. Nodes that are in no domain of a level each count as a domain of their own:
// node and nodes add that, so that it weighs in each choice among such nodes.
func (s *spread) own(c cost, d, m int) {
	if d != topology.Root && s.tree.Named(d) {
		s.plus(c, s.tree.LevelOf(d), m, int(s.places[d]), s.tree.Whole(d))
	}
}

// node adds the cost of node i if m members are on it.
func (s *spread) node(c cost, i, m int) {
	s.plus(c, len(s.span)-1, m, int(s.rooms[i]), !s.tree.Used(i))
	s.unnamed(c, s.tree.Leaf(i), 1)
}

// nodes adds the cost of n nodes of d that are used whole.
func (s *spread) nodes(c cost, d, n int) {
	c[s.span[len(s.span)-1]] += int32(n)
	s.unnamed(c, d, n)
}

// unnamed counts n nodes of d as domains at each level where they are in none.
func (s *spread) unnamed(c cost, d, n int) {
	for ; d != topology.Root; d = s.tree.Parent(d) {
		if !s.tree.Named(d) {
			c[s.span[s.tree.LevelOf(d)]] += int32(n)
		}
	}
}

// within has a bit for each level at which d is in no named domain.
func (s *spread) within(d int) (levels uint64) {
	for ; d != topology.Root; d = s.tree.Parent(d) {
		if !s.tree.Named(d) {
			levels |= 1 << s.tree.LevelOf(d)
		}
	}
	return levels
}
