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

// unnamed adds the cost of nodes that are in no domain of a level: each counts as a domain of its own.
func (s scale) unnamed(c cost, level int) {
	c[s.span[level]] += c[s.span[len(s.span)-1]]
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

// own adds the own cost of domain d if m members are in it.
func (s *spread) own(c cost, d, m int) {
	switch level := s.tree.LevelOf(d); {
	case d == topology.Root:
	case s.tree.Named(d):
		s.plus(c, level, m, int(s.places[d]), s.tree.Whole(d))
	default:
		s.unnamed(c, level)
	}
}
