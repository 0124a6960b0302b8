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
		needed = max(needed, g.Min-(g.Size-missing), 1)
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
