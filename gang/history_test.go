package gang

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

// history is a cluster of 2 zones with 3 domains each, of up to 6 nodes. Gangs are placed, lose and regain members, and end. Each node has
// 4 devices and each member uses 4. With whole nodes no other pod is on a member's node.
type history struct {
	t     *testing.T
	seed  int64
	rng   *rand.Rand
	sick  map[string]bool
	names []string
	// bare is a node that lacks its labels for the moment.
	bare string
	// domain has the path of each node, gangs have numbers, and gone are those that ended.
	domain map[string][]string
	gangs  []Gang
	// fewer counts the members that placements of elastic gangs left out.
	fewer int
}

func newHistory(t *testing.T, seed int64) *history {
	h := &history{t: t, seed: seed, rng: rand.New(rand.NewSource(seed)), sick: map[string]bool{}, domain: map[string][]string{}}
	for z := range 2 {
		for d := range 3 {
			for i := range 3 + h.rng.Intn(4) {
				name := fmt.Sprintf("z%d-d%d-n%d", z, d, i)
				h.names = append(h.names, name)
				h.domain[name] = []string{fmt.Sprint("z", z), fmt.Sprint("d", d)}
			}
		}
	}
	return h
}

func (h *history) key(node string, level int) string { return fmt.Sprint(h.domain[node][:level+1]) }

// tree returns the present cluster.
func (h *history) tree() *topology.Tree {
	var nodes []topology.Node
	for _, name := range h.names {
		n := topology.Node{Name: name, Domain: h.domain[name], Free: topology.Resources{"gpu": 4}}
		if name == h.bare {
			n.Domain = nil
		}
		for _, g := range h.gangs {
			for _, m := range g.Members {
				if m.Node != name {
					continue
				}
				n.Free["gpu"] -= 4
				n.Used, n.Tenants, n.Exclusive = true, n.Tenants+1, n.Exclusive || g.Topology.Whole
				if g.Topology.Spares > n.Spares {
					n.Spares, n.SparesAt = g.Topology.Spares, "nvlink"
				}
			}
		}
		if n.Free["gpu"] < 0 {
			h.t.Fatalf("seed %d: NeverTwice: node %s is used twice", h.seed, name)
		}
		nodes = append(nodes, n)
	}
	return topology.New([]topology.Level{{Name: "zone"}, {Name: "nvlink"}}, nodes...)
}

func (h *history) arrive() {
	g := Gang{Size: 1 + h.rng.Intn(8), Roles: []Role{{Requests: topology.Resources{"gpu": 4}}}}
	g.Topology.Whole = h.rng.Intn(3) == 0
	switch h.rng.Intn(4) {
	case 0:
		g.Topology.Required = []string{"zone", "nvlink"}[h.rng.Intn(2)]
	case 1:
		g.Topology.SliceLevel, g.Topology.Spares = "nvlink", h.rng.Intn(3)
	case 2:
		g.Topology.Spares = h.rng.Intn(3)
	}
	if h.rng.Intn(3) == 0 {
		g.Min = 1 + h.rng.Intn(g.Size)
	}
	for slot := range g.Size {
		g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprintf("g%d-%d", len(h.gangs), slot)})
	}
	h.gangs = append(h.gangs, g)
	h.place(len(h.gangs)-1, true)
}

// place places a gang. A new gang that is refused ends.
func (h *history) place(k int, fresh bool) {
	g := h.gangs[k]
	g.Roles[0].Out = map[string]Cause{}
	for name := range h.sick {
		g.Roles[0].Out[name] = Cause{Kind: Unhealthy, Name: "x"}
	}
	before := h.unused()
	p, refusal := Place(h.tree(), g)
	if refusal != nil {
		if fresh {
			h.gangs[k].Members = nil
		}
		return
	}
	if n := len(p.Assignments); n != len(g.Members) && (g.Min == 0 || n < g.Min) {
		h.t.Fatalf("seed %d: NeverHalf: %d assignments for %d, of which %d are needed", h.seed, n, len(g.Members), g.Min)
	}
	h.fewer += len(g.Members) - len(p.Assignments)
	at := p.At()
	for i := range g.Members {
		m := &g.Members[i]
		node := at[m.Name]
		if m.Node != "" && m.Node != node {
			h.t.Fatalf("seed %d: a member that stands was moved from %s to %q", h.seed, m.Node, node)
		}
		if m.Node == "" && h.sick[node] {
			h.t.Fatalf("seed %d: NeverRuledOut: %s is sick", h.seed, node)
		}
		m.Node = node
	}
	h.held(g, fresh)
	if h.bare == "" { // no spares are promised on a node without a domain
		h.sparesKept(k, before, fresh)
	}
}

// held checks the rules RequiredHeld and, for a new gang, SlicesEqual and InOrder of docs/designs/placement.md.
func (h *history) held(g Gang, fresh bool) {
	level := slices.Index([]string{"zone", "nvlink"}, g.Topology.Required)
	per, placed := map[string]int{}, slices.DeleteFunc(slices.Clone(g.Members), func(m Member) bool { return m.Node == "" })
	for i, m := range placed {
		per[h.key(m.Node, 1)]++
		if level >= 0 && h.key(m.Node, level) != h.key(placed[0].Node, level) {
			h.t.Fatalf("seed %d: RequiredHeld: %s and %s", h.seed, m.Node, placed[0].Node)
		}
		if fresh && i > 0 && m.Node < placed[i-1].Node {
			h.t.Fatalf("seed %d: InOrder: %s after %s", h.seed, m.Node, placed[i-1].Node)
		}
	}
	if fresh && g.Topology.SliceLevel != "" {
		for d, n := range per {
			if n*len(per) != len(placed) {
				h.t.Fatalf("seed %d: SlicesEqual: %d of %d in %s, one of %d domains", h.seed, n, len(placed), d, len(per))
			}
		}
	}
}

// unused counts, for each NVLink domain, the free nodes that are healthy and those that are sick.
func (h *history) unused() map[string][2]int {
	used := map[string]bool{}
	for _, g := range h.gangs {
		for _, m := range g.Members {
			used[m.Node] = true
		}
	}
	left := map[string][2]int{}
	for _, name := range h.names {
		n := left[h.key(name, 1)]
		if h.sick[name] {
			n[1]++
		} else if !used[name] {
			n[0]++
		}
		left[h.key(name, 1)] = n
	}
	return left
}

// sparesKept checks that a gang used no other gang's spares, and its own only for replaced members.
func (h *history) sparesKept(k int, before map[string][2]int, fresh bool) {
	after := h.unused()
	for j, g := range h.gangs {
		for _, m := range g.Members {
			if m.Node == "" || (j == k && !fresh) {
				continue
			}
			d := h.key(m.Node, 1)
			if want := g.Topology.Spares - after[d][1]; after[d][0] < before[d][0] && after[d][0] < want {
				h.t.Fatalf("seed %d: SparesKept: %d free in %s, %d promised", h.seed, after[d][0], d, want)
			}
		}
	}
}

func (h *history) step() {
	switch k := h.rng.Intn(max(1, len(h.gangs))); h.rng.Intn(6) {
	case 0:
		if len(h.gangs) > 0 {
			h.gangs[k].Members = nil
		}
	case 1:
		name := h.names[h.rng.Intn(len(h.names))]
		if h.sick[name] {
			delete(h.sick, name)
		} else {
			h.sick[name] = true
		}
	case 2, 3:
		if len(h.gangs) > 0 {
			for i := range h.gangs[k].Members {
				if h.rng.Intn(3) == 0 {
					h.gangs[k].Members[i].Node = ""
				} else if h.rng.Intn(8) == 0 {
					h.bare = h.gangs[k].Members[i].Node
				}
			}
			h.place(k, false)
			h.bare = ""
		}
	default:
		h.arrive()
	}
}

// TestInvariantsUnderRandomHistories: gangs that need all of their members beside elastic ones.
func TestInvariantsUnderRandomHistories(t *testing.T) {
	fewer := 0
	for seed := range seeds.All(t, int64(1500)) {
		h := newHistory(t, seed)
		for range 25 {
			h.step()
		}
		fewer += h.fewer
	}
	if !seeds.One() && fewer < 300 {
		t.Errorf("elastic gangs were placed without %d members: the histories are too tame", fewer)
	}
}

// Beyond the bound of the exact search a placement is still found exactly if there is one, and slices, order and capacity still hold.
func TestBeyondTheExactSearch(t *testing.T) {
	exactly = 0
	defer func() { exactly = maxCells }()
	for seed := range seeds.All(t, int64(3000)) {
		f := randomFabric(rand.New(rand.NewSource(seed)))
		twin := newSlow(f)
		p, refusal := Place(topology.New(f.levels, f.nodes...), f.g)
		if want := twin.place(); (want == nil) != (refusal != nil) {
			t.Fatalf("seed %d: the twin finds %v, Place says %v %v\n%+v", seed, want, p, refusal, f)
		}
		if refusal == nil {
			twin.inOrder(t, seed, p)
		}
	}
	for seed := range seeds.All(t, int64(300)) {
		h := newHistory(t, seed)
		for range 25 {
			h.step()
		}
	}
}

// FuzzPlace: for any gang and nodes Place returns an answer, and a placement is valid.
func FuzzPlace(f *testing.F) {
	f.Add(int64(1), 4, 2, 0, 0, 0, "l0", "", "l1")
	f.Add(int64(7), -3, 0, -1, 5, 9, "", "key/0", "none")
	f.Fuzz(func(t *testing.T, seed int64, size, block, spares, least, lost int, required, preferred, slice string) {
		w := randomFabric(rand.New(rand.NewSource(seed)))
		w.g.Min = least
		w.g.Topology = Topology{
			Required:   required,
			Preferred:  preferred,
			SliceLevel: slice,
			SliceSize:  size,
			Block:      block,
			Spares:     spares,
			Uneven:     seed%2 == 0,
			Whole:      seed%3 == 0,
		}
		for i := range w.g.Members {
			if lost > 0 && i%lost == 0 {
				w.g.Members[i].Node = fmt.Sprint("n", i) // known or not
			}
		}
		tree := topology.New(w.levels, w.nodes...)
		before := snapshot(tree)
		p, refusal := Place(tree, w.g)
		if fmt.Sprint(before) != fmt.Sprint(snapshot(tree)) {
			t.Fatal("TreeUnchanged: it was changed")
		}
		if (refusal == nil) == (len(p.Assignments) == 0) || (refusal != nil && refusal.Message == "") {
			t.Fatalf("neither a placement nor a refusal: %v %v", p, refusal)
		}
		for _, assignment := range p.Assignments {
			if i, ok := tree.Find(assignment.Node); w.g.Members[assignment.Slot].Node == "" && (!ok || !tree.Take(i, w.g.Roles[0].Requests)) {
				t.Fatalf("NeverTwice: %s is over capacity or unknown", assignment.Node)
			}
		}
	})
}
