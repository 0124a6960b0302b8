package gang

import (
	"slices"

	"holdfast.dev/holdfast/topology"
)

// cost is what a choice of nodes costs: numbers of which the first that differs decides. In this order, each by
// level from the widest down to the node:
//
//	near    domains used, at levels where closeness counts
//	damage  domains that were whole and are only partly used now
//	far     domains used, at the levels below
//	left    places left over in the domains used
//
// Costs of separate domains add up.
type cost []int32

// scale says where the numbers of a level stand in a cost.
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

// plus adds what a domain or node of a level costs itself where m of its places are used.
func (s scale) plus(c cost, level, m, places int, whole bool) {
	c[s.span[level]]++
	if whole && m < places {
		c[s.damage[level]]++
	}
	c[s.lef[level]] += int32(places - m)
}

// unnamed adds what a set of nodes costs that are in no domain of a level: each is as far as can be.
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

// own adds what domain d costs itself where m members are in it.
func (s *spread) own(c cost, d, m int) {
	switch level := s.tree.LevelOf(d); {
	case d == topology.Root:
	case s.tree.Named(d):
		s.plus(c, level, m, int(s.places[d]), s.tree.Whole(d))
	default:
		s.unnamed(c, level)
	}
}
