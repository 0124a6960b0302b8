package gang

import (
	"fmt"
	"math/rand"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

// fewerWorld returns a gang with a minimum below its size, on nodes without levels.
func fewerWorld(r *rand.Rand, roles int) ([]topology.Node, Gang, int) {
	var nodes []topology.Node
	room := 0
	for i := range 1 + r.Intn(5) {
		free := r.Intn(4)
		room += free
		nodes = append(nodes, topology.Node{Name: fmt.Sprint("n", i), Free: topology.Resources{"gpu": int64(free)}})
	}
	g := Gang{Size: 1 + r.Intn(8)}
	g.Min = 1 + r.Intn(g.Size)
	for range roles {
		g.Roles = append(g.Roles, Role{Requests: topology.Resources{"gpu": 1}})
	}
	standing := r.Intn(3) == 0
	for slot := range g.Size {
		m := Member{Slot: slot, Name: fmt.Sprint("m", slot), Role: r.Intn(roles), Essential: r.Intn(4) == 0}
		if standing && r.Intn(2) == 0 {
			m.Node = nodes[r.Intn(len(nodes))].Name
		}
		g.Members = append(g.Members, m)
	}
	return nodes, g, room
}

// TestFewerThanAll checks, in random clusters, the rules for a gang with a minimum: AtLeastMin (or none), EssentialPlaced, AsManyAsFit,
// NeverTwice, LowestSlots (the highest slots are left out), TreeUnchanged.
func TestFewerThanAll(t *testing.T) {
	placed := 0
	for seed := range seeds.All(t, int64(6000)) {
		r := rand.New(rand.NewSource(seed))
		nodes, g, room := fewerWorld(r, 1+r.Intn(2))
		missing, needed := 0, 0
		for _, m := range g.Members {
			if m.Node == "" {
				missing++
				needed += int(one(m.Essential))
			}
		}
		if missing == 0 {
			continue
		}
		needed = max(needed, g.Min-(g.Size-missing))
		checkNeeded(t, seed, g, needed)
		needed = max(needed, 1) // a placement has one at least
		tree := topology.New(nil, nodes...)
		before := fmt.Sprint(snapshot(tree))
		p, refusal := Place(tree, g)
		if after := fmt.Sprint(snapshot(tree)); after != before {
			t.Fatalf("seed %d: TreeUnchanged: %s, was %s", seed, after, before)
		}
		if (refusal == nil) != (room >= needed) {
			t.Fatalf("seed %d: AtLeastMin: room for %d, %d needed of %d: %v", seed, room, needed, missing, refusal)
		}
		if refusal != nil {
			continue
		}
		placed++
		if p.Placed != min(room, missing) {
			t.Fatalf("seed %d: AsManyAsFit: room for %d of %d, %d placed", seed, room, missing, p.Placed)
		}
		at := p.At()
		waits := false
		for _, m := range g.Members {
			node, seated := at[m.Name]
			switch {
			case m.Node != "" && node != m.Node:
				t.Fatalf("seed %d: %s was moved from %s to %q", seed, m.Name, m.Node, node)
			case m.Node != "":
			case !seated && m.Essential:
				t.Fatalf("seed %d: EssentialPlaced: %s was not", seed, m.Name)
			case seated && waits && !m.Essential:
				t.Fatalf("seed %d: LowestSlots: %s has a place, one before it waits", seed, m.Name)
			case seated:
				if i, ok := tree.Find(node); !ok || !tree.Take(i, g.Roles[m.Role].Requests) {
					t.Fatalf("seed %d: NeverTwice: %s on %s", seed, m.Name, node)
				}
			default:
				waits = true
			}
		}
	}
	if !seeds.One() && placed < 1000 {
		t.Errorf("only %d worlds had room: the test says little", placed)
	}
}

// checkNeeded checks that a gang needs n of its members to be placed: the essential ones, then those of the lowest slots; and that the gang
// without its surplus needs the same, and has no surplus.
func checkNeeded(t *testing.T, seed int64, g Gang, n int) {
	t.Helper()
	needed, surplus := g.Needed()
	if len(needed) != n {
		t.Fatalf("seed %d: %d are needed, want %d", seed, len(needed), n)
	}
	for _, i := range surplus {
		if g.Members[i].Essential || g.Members[i].Node != "" {
			t.Fatalf("seed %d: %+v is surplus", seed, g.Members[i])
		}
		for _, k := range needed {
			if !g.Members[k].Essential && g.bySlot(i, k) < 0 {
				t.Fatalf("seed %d: %s is surplus, and %s of a higher slot is needed", seed, g.Members[i].Name, g.Members[k].Name)
			}
		}
	}
	least, needs := g.Minimum()
	again, more := least.Needed()
	if needs != (n > 0) || len(again) != n || len(more) > 0 || len(least.Members) != len(g.Members)-len(surplus) {
		t.Fatalf("seed %d: without its surplus the gang needs %d (%v) and has a surplus of %d", seed, len(again), needs, len(more))
	}
}
