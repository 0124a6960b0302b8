package gang

import (
	"cmp"
	"slices"

	"holdfast.dev/holdfast/topology"
)

// maxCells bounds the exact search, in compared sums. Beyond it the largest domains are filled first, which keeps the number of domains low
// but may cost more otherwise.
const maxCells = 100_000

// exactly is maxCells, except in tests of what happens beyond it.
var exactly = maxCells

// spread distributes members over domains and nodes at the least cost.
type spread struct {
	*view
	scale
	near int
	// unit members go together into a domain of level unitAt; once: no domain takes two units. At the level of nodes, unit is 1 and units
	// is places.
	unit, unitAt int
	once         bool
	units        []int32
	cells        int
	// known caches the costs of interchangeable domains.
	known map[likeness]cost
	looks map[int]uint64
}

type likeness struct {
	look, within uint64
	u            int
	unit         bool
}

// share is a number of members on a node.
type share struct{ node, n int }

func newSpread(v *view, near int) *spread {
	levels := len(v.tree.Levels())
	return &spread{view: v, scale: newScale(levels, near), near: near, unit: 1, unitAt: levels, units: v.places, cells: exactly,
		known: map[likeness]cost{}, looks: map[int]uint64{}}
}

// inUnits makes members go in units into domains of a level; taken ones take none.
func (s *spread) inUnits(unit, level int, once bool, taken map[int]bool) {
	s.unit, s.unitAt, s.once = unit, level, once
	s.units = make([]int32, len(s.places))
	clear(s.known)
	clear(s.looks)
	var count func(d int) int32
	count = func(d int) int32 {
		if s.places[d] < int32(unit) {
			return 0
		}
		if s.tree.LevelOf(d) == level {
			n := s.places[d] / int32(unit)
			if once {
				n = min(n, 1)
			}
			if taken[d] || !s.tree.Named(d) {
				n = 0
			}
			s.units[d] = n
			return n
		}
		for _, c := range s.tree.Children(d) {
			s.units[d] += count(int(c))
		}
		return s.units[d]
	}
	count(topology.Root)
}

// part is a child of a domain, or a node, with its share: units above unitAt, members at and below it.
type part struct {
	at   int
	node bool
	u    int
	// pos is its place among its siblings.
	pos int
}

// above reports whether d is wider than the level of units, so that its share is in units.
func (s *spread) above(d int) bool { return s.tree.LevelOf(d) < s.unitAt }

// holds returns how much d takes, in units or members.
func (s *spread) holds(d int) int {
	if s.above(d) {
		return int(s.units[d])
	}
	return int(s.places[d])
}

// members returns how many members a share of d is.
func (s *spread) members(d, u int) int {
	if s.above(d) {
		return u * s.unit
	}
	return u
}

// children returns the parts of d that have room, with their room.
func (s *spread) children(d int) []part {
	var parts []part
	for _, c := range s.tree.Children(d) {
		n := int(s.places[c])
		if s.above(d) {
			n = int(s.units[c])
		}
		if n > 0 {
			parts = append(parts, part{at: int(c), u: n, pos: len(parts)})
		}
	}
	for _, i := range s.tree.Nodes(d) {
		if s.rooms[i] > 0 {
			parts = append(parts, part{at: int(i), node: true, u: int(s.rooms[i]), pos: len(parts)})
		}
	}
	return parts
}

// down converts the share of a part from units to members, in a domain of units.
func (s *spread) down(p part) part {
	if !p.node && s.tree.LevelOf(p.at) == s.unitAt {
		p.u *= s.unit
	}
	return p
}

// value returns the cost of u in a part.
func (s *spread) value(p part) cost {
	c := make(cost, s.width)
	if p.u == 0 {
		return c
	}
	if p.node {
		s.node(c, p.at, p.u)
		return c
	}
	key := likeness{s.look(p.at), s.within(p.at), p.u, s.above(p.at)}
	if known, ok := s.known[key]; ok {
		return known
	}
	if s.flat(p.at) {
		s.nodes(c, p.at, p.u)
	} else {
		for _, q := range s.split(p.at, p.u) {
			c.add(s.value(s.down(q)))
		}
	}
	s.own(c, p.at, s.members(p.at, p.u))
	s.known[key] = c
	return c
}

// flat reports whether the nodes of d take one member each, so that they are interchangeable.
func (s *spread) flat(d int) bool {
	return len(s.tree.Nodes(d)) > 0 && s.places[d] == s.open[d]
}

// split returns the share of each part of d if d gets u, which it must hold.
func (s *spread) split(d, u int) []part {
	parts := s.children(d)
	switch {
	case u == s.holds(d):
		return parts // all room is used, so there is no choice
	case s.flat(d):
		return s.firstOnes(parts, u)
	case s.closenessFirst(d):
		if best, ok := s.best(parts, u); ok {
			return []part{best}
		}
	}
	if cells := s.work(d, u, s.cells); cells <= s.cells {
		s.cells -= cells
		return s.exact(parts, u)
	}
	return s.filling(d, parts, u)
}

func (s *spread) firstOnes(parts []part, u int) []part {
	parts = parts[:u]
	for i := range parts {
		parts[i].u = 1
	}
	return parts
}

// closenessFirst reports whether the number of used parts of d is the first criterion.
func (s *spread) closenessFirst(d int) bool { return s.tree.LevelOf(d)+1 <= s.near }

// best returns the part that takes all of u at the least cost, the first of equals. Nodes that are in no domain of the level count as one
// part only if no real domain takes u.
func (s *spread) best(parts []part, u int) (best part, ok bool) {
	var least cost
	named := false
	for _, p := range parts {
		if p.u < u {
			continue
		}
		p.u = u
		named = named || p.node || s.tree.Named(p.at)
		if c := s.value(s.down(p)); least == nil || c.less(least) {
			best, least = p, c
		}
	}
	return best, least != nil && (named || least[s.span[s.tree.LevelOf(best.at)]] == 1)
}

// filling uses whole parts, the largest first, and for the rest the part that takes it at the least cost. If whole domains are to be
// spared, partly used ones come first.
func (s *spread) filling(d int, parts []part, u int) []part {
	var chosen []part
	rounds := [][]part{parts}
	if !s.closenessFirst(d) {
		rounds = [][]part{
			slices.DeleteFunc(slices.Clone(parts), s.whole),
			slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !s.whole(p) }),
		}
	}
	for _, round := range rounds {
		slices.SortStableFunc(round, func(a, b part) int {
			return cmp.Or(int(one(s.unnamedPart(a))-one(s.unnamedPart(b))), cmp.Compare(b.u, a.u))
		})
		for k, p := range round {
			if u == 0 {
				return chosen
			}
			rest := slices.DeleteFunc(slices.Clone(round[k:]), func(p part) bool { return p.u < u })
			slices.SortFunc(rest, func(a, b part) int { return cmp.Compare(a.pos, b.pos) })
			if best, ok := s.best(rest, u); ok {
				return append(chosen, best)
			}
			p.u = min(p.u, u)
			chosen = append(chosen, p)
			u -= p.u
		}
	}
	return chosen
}

func (s *spread) whole(p part) bool {
	if p.node {
		return !s.tree.Used(p.at)
	}
	return s.tree.Whole(p.at)
}

func (s *spread) unnamedPart(p part) bool { return !p.node && !s.tree.Named(p.at) }

// assign adds to out the nodes' shares if d gets u.
func (s *spread) assign(d, u int, out []share) []share {
	for _, p := range s.split(d, u) {
		p = s.down(p)
		switch {
		case p.u == 0:
		case p.node:
			out = append(out, share{p.at, p.u})
		default:
			out = s.assign(p.at, p.u, out)
		}
	}
	return out
}
