package gang

import (
	"fmt"
	"strings"
	"testing"

	"holdfast.dev/holdfast/topology"
)

// shapes returns a gang of a launcher without GPUs and of workers. With two, every second worker requests half a node.
func shapes(size int, two bool) Gang {
	g := Gang{
		Size: size,
		Roles: []Role{
			{Requests: topology.Resources{"gpu": 8, "cpu": 8}},
			{Requests: topology.Resources{"cpu": 4}},
			{Requests: topology.Resources{"gpu": 4, "cpu": 4}},
		},
	}
	for slot := range size {
		m := Member{Slot: slot, Name: fmt.Sprintf("p%04d", slot)}
		switch {
		case slot == 0:
			m.Role = 1
		case two && slot%2 == 0:
			m.Role = 2
		}
		g.Members = append(g.Members, m)
	}
	return g
}

// racked returns a tree of nodes with 8 GPUs, 16 in a rack; taken of them have no free GPU.
func racked(nodes, taken int) *topology.Tree {
	var all []topology.Node
	for i := range nodes {
		n := topology.Node{Name: fmt.Sprintf("n%05d", i), Domain: []string{fmt.Sprintf("r%04d", i/16)}, Free: topology.Resources{"gpu": 8, "cpu": 64}}
		if i < taken {
			n.Free["gpu"] = 0
		}
		all = append(all, n)
	}
	return topology.New([]topology.Level{{Name: "rack"}}, all...)
}

// A gang of several shapes that cannot fit by counts is refused without a search: the refusal costs little more than one visit of each node
// per shape, and reaches no limit.
func TestNoForSeveralShapesIsProvenByCounts(t *testing.T) {
	const nodes, size = 5000, 1000
	for name, c := range map[string]struct {
		g     Gang
		taken int
		fits  int
		short bool
	}{
		"no room for the workers":         {shapes(size, false), nodes - 500, 500, false},
		"each shape alone would have had": {shapes(size, true), nodes - 600, 650, false},
		"it fits":                         {shapes(size, true), nodes - 1000, 0, true},
	} {
		_, refusal, visited := PlaceWithin(racked(nodes, c.taken), c.g, noLimit)
		if fits := refusal == nil; fits != c.short {
			t.Errorf("%s: %+v", name, refusal)
		}
		if most := len(c.g.Roles)*nodes + size; visited > most {
			t.Errorf("%s: %d nodes were looked at, more than %d", name, visited, most)
		}
		if refusal != nil && (strings.Contains(refusal.Message, "stopped") || refusal.Fits < c.fits || refusal.Fits >= size) {
			t.Errorf("%s: %s", name, refusal.Message)
		}
	}
}

// Each call of Agree runs filters. Equal members that must be apart cause few calls more than the nodes that they get, and a search without
// result ends.
func TestRulesAreAskedSeldom(t *testing.T) {
	const nodes, size = 5000, 1000
	for name, c := range map[string]struct{ free, most int }{
		"room for all": {nodes, 2 * (nodes + size)}, "one node too few": {size - 1, maxAsks + 3*(nodes+size)}} {
		asked := 0
		g := Gang{
			Size:  size,
			Roles: []Role{{Requests: topology.Resources{"gpu": 1}}},
			Agree: func(m int, node string, assignments []Assignment) (Cause, bool) {
				asked++
				return oneEach(m, node, assignments)
			},
		}
		for slot := range size {
			g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprintf("p%04d", slot)})
		}
		p, refusal := Place(racked(nodes, nodes-c.free), g)
		if (refusal == nil) != (c.free >= size) || refusal == nil && p.Placed != size || refusal != nil && refusal.Fits != size-1 {
			t.Errorf("%s: placed %d: %+v", name, p.Placed, refusal)
		}
		if asked > c.most {
			t.Errorf("%s: asked %d times, more than %d", name, asked, c.most)
		}
	}
}

// The same holds for a gang with a minimum, for which the most members that fit are searched.
func TestRulesAreAskedSeldomOfFewer(t *testing.T) {
	const nodes, size, free = 1000, 1000, 300
	asked := 0
	g := Gang{
		Size:  size,
		Min:   1,
		Roles: []Role{{Requests: topology.Resources{"gpu": 1}}},
		Agree: func(m int, node string, assignments []Assignment) (Cause, bool) {
			asked++
			return oneEach(m, node, assignments)
		},
	}
	for slot := range size {
		g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprintf("p%04d", slot)})
	}
	p, refusal := Place(racked(nodes, nodes-free), g)
	if refusal != nil || p.Placed != free {
		t.Errorf("placed %d of %d: %+v", p.Placed, free, refusal)
	}
	if most := 2*maxAsks + 14*2*(nodes+size); asked > most {
		t.Errorf("asked %d times, more than %d", asked, most)
	}
}

// A caller that makes many searches can limit the visits of one.
func TestPlaceWithinALimit(t *testing.T) {
	for _, limit := range []int{0, 100, 10_000} {
		_, refusal, visited := PlaceWithin(racked(1000, 0), shapes(200, true), limit)
		if (refusal == nil) != (limit == 10_000) || visited > limit {
			t.Errorf("limit %d: %d nodes were looked at: %+v", limit, visited, refusal)
		}
		if refusal != nil && !strings.HasSuffix(refusal.Message, "the search reached its limit") {
			t.Error(refusal.Message)
		}
	}
}
