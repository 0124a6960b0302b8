package gang

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

// TestWholeBlocks checks, in random clusters, a gang that goes on with whole blocks of slots: of members that it does not need, those of a
// block are placed together or not at all, and as many blocks as fit are placed, the lowest first.
func TestWholeBlocks(t *testing.T) {
	placed, divided := 0, 0
	for seed := range seeds.All(t, int64(4000)) {
		r := rand.New(rand.NewSource(seed))
		roles := 1 + r.Intn(2)
		nodes, g, room := fewerWorld(r, roles)
		g.Unit = 2 + r.Intn(2)
		g.Members, g.Size = nil, g.Unit*(1+r.Intn(4))
		missing, needed := 0, r.Intn(g.Size/g.Unit+1)*g.Unit // of the lowest blocks
		whole := map[int]int{}
		for slot := range g.Size {
			m := Member{Slot: slot, Name: fmt.Sprint("m", slot), Role: r.Intn(roles), Essential: slot < needed}
			if r.Intn(3) == 0 {
				m.Node = nodes[0].Name
			} else {
				whole[slot/g.Unit]++
				missing++
			}
			g.Members = append(g.Members, m)
		}
		if missing == 0 {
			continue
		}
		on := g.Size - missing
		least := 0
		for block, n := range whole {
			if block*g.Unit < needed {
				least += n
			}
		}
		g.Min = max(1, on+least)
		want, first := 0, least // as many whole blocks as there is room for, in order
		for block := 0; block*g.Unit < g.Size; block++ {
			if block*g.Unit >= needed && want+whole[block] <= room-least {
				want += whole[block]
			} else if block*g.Unit >= needed {
				break
			}
			if first == 0 {
				first = want
			}
		}
		tree := topology.New(nil, nodes...)
		p, refusal := Place(tree, g)
		if (refusal == nil) != (room >= least && least+want > 0) {
			t.Fatalf("seed %d: room for %d, %d are needed, %d could join: %+v", seed, room, least, want, refusal)
		}
		if refusal != nil {
			continue
		}
		placed++
		at, joined := p.At(), map[int]int{}
		for _, m := range g.Members {
			if m.Node == "" && at[m.Name] != "" {
				joined[m.Slot/g.Unit]++
			}
		}
		for block, n := range joined {
			if n != whole[block] {
				t.Fatalf("seed %d: %d of %d members of block %d are placed", seed, n, whole[block], block)
			}
		}
		if p.Placed < missing && room > p.Placed {
			divided++
		}
		if exact := roles == 1; exact && p.Placed != least+want || p.Placed > least+want {
			t.Fatalf("seed %d: %d placed, want %d", seed, p.Placed, least+want)
		}
	}
	if !seeds.One() && (placed < 500 || divided < 50) {
		t.Errorf("%d placements, %d that leave room free: the test says little", placed, divided)
	}
}

// TestABlockJoinsOneDomain: a block of which no member is on a node joins in one domain, or not at all, beside members on nodes.
func TestABlockJoinsOneDomain(t *testing.T) {
	level := []topology.Level{{Name: "rack", Key: "rack"}}
	at := func(name, rack string, free int64) topology.Node {
		return topology.Node{Name: name, Domain: []string{rack}, Free: topology.Resources{"gpu": free}}
	}
	for name, c := range map[string]struct {
		free  []int64 // of nodes a1, a2 of rack a, b1, b2 of rack b, c1 of rack c
		agree bool
		want  string
	}{
		"in the rack of the others":   {[]int64{1, 1, 1, 1, 0}, false, "a1 a2"},
		"in another rack":             {[]int64{1, 0, 1, 1, 1}, false, "b1 b2"},
		"in another rack, with rules": {[]int64{1, 0, 1, 1, 1}, true, "b1 b2"},
		"nowhere":                     {[]int64{1, 0, 1, 0, 1}, false, ""},
		"nowhere, with rules":         {[]int64{1, 0, 1, 0, 1}, true, ""},
	} {
		var nodes []topology.Node
		for i, n := range []string{"a1", "a2", "b1", "b2", "c1"} {
			nodes = append(nodes, at(n, n[:1], c.free[i]))
		}
		nodes = append(nodes, at("a0", "a", 0))
		g := Gang{
			Size: 4, Min: 2, Unit: 2, Topology: Topology{Block: 2}, Roles: []Role{{Requests: topology.Resources{"gpu": 1}}},
			Members: []Member{{Slot: 0, Name: "m0", Node: "a0"}, {Slot: 1, Name: "m1", Node: "a0"}, {Slot: 2, Name: "m2"}, {Slot: 3, Name: "m3"}},
		}
		if c.agree {
			g.Agree = func(int, string, []Assignment) (Cause, bool) { return Cause{}, true }
		}
		p, refusal := Place(topology.New(level, nodes...), g)
		got := ""
		if refusal == nil {
			got = p.At()["m2"] + " " + p.At()["m3"]
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q; %+v", name, got, c.want, refusal)
		}
	}
}

// TestBlocksWithSlotsWithoutAMember: the slots of pods that succeeded have no member, nor have those of pods that do not exist. The other
// members of these blocks, and the blocks after them, are placed all the same.
func TestBlocksWithSlotsWithoutAMember(t *testing.T) {
	level := []topology.Level{{Name: "rack", Key: "rack"}}
	for name, c := range map[string]struct {
		block int
		on    map[int]string // node by slot
		place []int          // slots
		free  map[string]int64
		want  string
	}{
		"the other pod of a block succeeded": {2, map[int]string{0: "a0", 1: "a0"}, []int{3}, map[string]int64{"a0": 0, "b0": 1}, "b0"},
		"that of a block beside a whole one": {
			2, map[int]string{0: "a0", 1: "a0"}, []int{3, 4, 5}, map[string]int64{"a0": 1, "b0": 1, "c0": 2}, "a0 c0 c0",
		},
		"pods of blocks before and after do not exist": {
			2, map[int]string{0: "a0", 1: "a0", 2: "b0", 6: "c0"}, []int{4, 5}, map[string]int64{"a0": 0, "b0": 1, "c0": 1, "d0": 2}, "d0 d0",
		},
		"one of a block whose others have nodes, next to a block that lacks pods": {
			4, map[int]string{0: "a0", 1: "a0", 2: "a0", 4: "b0"}, []int{3}, map[string]int64{"a0": 1, "b0": 1}, "a0",
		},
	} {
		g := Gang{Unit: c.block, Topology: Topology{Block: c.block}, Roles: []Role{{Requests: topology.Resources{"gpu": 1}}}}
		var nodes []topology.Node
		for _, n := range slices.Sorted(maps.Keys(c.free)) {
			nodes = append(nodes, topology.Node{Name: n, Domain: []string{n[:1]}, Free: topology.Resources{"gpu": c.free[n]}})
		}
		for slot := range 8 {
			if node, on := c.on[slot]; on || slices.Contains(c.place, slot) {
				g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprint("m", slot), Node: node})
			}
		}
		g.Size, g.Min = len(g.Members), len(c.on)
		p, refusal := Place(topology.New(level, nodes...), g)
		var got []string
		for _, slot := range c.place {
			if refusal == nil {
				got = append(got, p.At()[fmt.Sprint("m", slot)])
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q; %+v", name, got, c.want, refusal)
		}
	}
}

// TestBlocksAreSearchedAsTheyAreCounted checks, in random clusters, that a gang with rules among its members, which allow all, is placed
// exactly where the same gang without rules is, each fresh block in one domain.
func TestBlocksAreSearchedAsTheyAreCounted(t *testing.T) {
	level := []topology.Level{{Name: "rack", Key: "rack"}}
	placed, refused := 0, 0
	for seed := range seeds.All(t, int64(3000)) {
		r := rand.New(rand.NewSource(seed))
		nodes := []topology.Node{{Name: "on", Domain: []string{"0"}}}
		for i := range 3 + r.Intn(10) {
			rack := fmt.Sprint(r.Intn(5))
			if rack == "4" {
				rack = "" // no label
			}
			free := topology.Resources{"gpu": int64(r.Intn(3))}
			nodes = append(nodes, topology.Node{Name: fmt.Sprint("n", i), Domain: []string{rack}, Free: free})
		}
		block := 2 + r.Intn(2)
		g := Gang{Unit: block, Topology: Topology{Block: block}, Roles: []Role{{Requests: topology.Resources{"gpu": 1}}}}
		lost := map[int]int{} // by block
		for slot := range block * (2 + r.Intn(3)) {
			m := Member{Slot: slot, Name: fmt.Sprint("m", slot), Node: "on"}
			if slot >= block && (slot/block%2 == 0 || r.Intn(3) == 0) {
				m.Node = ""
				lost[slot/block]++
			}
			g.Members = append(g.Members, m)
		}
		g.Size = len(g.Members)
		tree := topology.New(level, nodes...)
		_, counted := Place(tree, g)
		g.Agree = func(int, string, []Assignment) (Cause, bool) { return Cause{}, true }
		p, refusal := Place(tree, g)
		if (refusal == nil) != (counted == nil) {
			t.Fatalf("seed %d: counted %+v, searched %+v", seed, counted, refusal)
		}
		if refusal != nil {
			refused++
			continue
		}
		placed++
		home := map[int]string{}
		for _, a := range p.Assignments {
			i := slices.IndexFunc(nodes, func(n topology.Node) bool { return n.Name == a.Node })
			b, rack := a.Slot/block, nodes[i].Domain[0]
			if lost[b] == block && (rack == "" || home[b] != "" && home[b] != rack) {
				t.Fatalf("seed %d: block %d is divided: %v", seed, b, p.Assignments)
			}
			home[b] = rack
		}
	}
	if !seeds.One() && (placed < 300 || refused < 300) {
		t.Errorf("%d placed, %d refused: the test says little", placed, refused)
	}
}
