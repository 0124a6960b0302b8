package gang

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

// simple returns a small random cluster, with one or two shapes and one or two resources.
func simple(rng *rand.Rand) (*topology.Tree, Gang) {
	var nodes []topology.Node
	for i := range rng.Intn(5) {
		n := topology.Node{Name: "n" + strconv.Itoa(i), Free: topology.Resources{"gpu": int64(rng.Intn(5)), "cpu": int64(rng.Intn(6))}}
		if rng.Intn(2) == 0 {
			n.Domain = []string{"r" + strconv.Itoa(rng.Intn(2))}
		}
		nodes = append(nodes, n)
	}
	g := Gang{}
	for range 1 + rng.Intn(2) {
		role := Role{Requests: topology.Resources{"gpu": int64(rng.Intn(4)), "cpu": int64(rng.Intn(3))}, Out: map[string]Cause{}}
		for _, n := range nodes {
			if rng.Intn(4) == 0 {
				role.Out[n.Name] = Cause{Kind: Kind(1 + rng.Intn(2))}
			}
		}
		g.Roles = append(g.Roles, role)
	}
	for slot := range 1 + rng.Intn(5) {
		m := Member{Slot: slot, Name: "p" + strconv.Itoa(slot), Role: rng.Intn(len(g.Roles))}
		if len(nodes) > 0 && rng.Intn(5) == 0 {
			m.Node = nodes[rng.Intn(len(nodes))].Name
		}
		g.Members = append(g.Members, m)
	}
	g.Size = len(g.Members)
	if rng.Intn(4) == 0 {
		g.Agree = oneEach
	}
	return topology.New(someLevels(nodes), nodes...), g
}

// oneEach is anti-affinity by host name.
func oneEach(_ int, node string, assignments []Assignment) (Cause, bool) {
	for _, s := range assignments {
		if s.Node == node {
			return Cause{Kind: Refused, Name: "Anti"}, false
		}
	}
	return Cause{}, true
}

// twin tries every node for every member, in every combination, and returns the most members that fit at once.
func twin(tree *topology.Tree, g Gang) int {
	free := map[string]topology.Resources{}
	for i := range tree.All() {
		free[tree.Name(i)] = topology.Resources{"gpu": tree.Free(i, "gpu"), "cpu": tree.Free(i, "cpu")}
	}
	var missing []Member
	for _, m := range g.Members {
		if m.Node == "" {
			missing = append(missing, m)
		}
	}
	var best int
	var try func(k, placed int, assignments []Assignment)
	try = func(k, placed int, assignments []Assignment) {
		best = max(best, placed)
		if k == len(missing) {
			return
		}
		role := g.Roles[missing[k].Role]
		for name, f := range free {
			if _, out := role.Out[name]; out || f["gpu"] < role.Requests["gpu"] || f["cpu"] < role.Requests["cpu"] {
				continue
			}
			if g.Agree != nil {
				if _, ok := g.Agree(0, name, assignments); !ok {
					continue
				}
			}
			f["gpu"] -= role.Requests["gpu"]
			f["cpu"] -= role.Requests["cpu"]
			try(k+1, placed+1, append(slices.Clone(assignments), Assignment{Node: name}))
			f["gpu"] += role.Requests["gpu"]
			f["cpu"] += role.Requests["cpu"]
		}
		try(k+1, placed, assignments)
	}
	try(0, 0, nil)
	return best
}

func TestPlaceAgainstTwin(t *testing.T) {
	for seed := range seeds.All(t, int64(4000)) {
		rng := rand.New(rand.NewSource(seed))
		tree, g := simple(rng)
		before := snapshot(tree)
		p, r := Place(tree, g)
		if !reflect.DeepEqual(before, snapshot(tree)) {
			t.Fatalf("seed %d: the tree was changed", seed)
		}
		most, wanted := twin(tree, g), len(g.missing())
		if fits := most == wanted; fits != (r == nil) {
			t.Fatalf("seed %d: the twin fits %d of %d, Place says %v %v", seed, most, wanted, p, r)
		}
		if r != nil {
			checkRefusal(t, seed, g, r, wanted, most)
			continue
		}
		checkPlacement(t, seed, tree, g, p)
	}
}

// checkPlacement checks that a placement is not partial, exceeds no capacity and uses no excluded node.
func checkPlacement(t *testing.T, seed int64, tree *topology.Tree, g Gang, p Placement) {
	t.Helper()
	if len(p.Assignments) != g.Size || p.Placed != len(g.missing()) {
		t.Fatalf("seed %d: half placed: %d assignments of %d", seed, len(p.Assignments), g.Size)
	}
	for slot, assignment := range p.Assignments {
		if assignment.Slot != slot {
			t.Fatalf("seed %d: assignment %d is %v", seed, slot, assignment)
		}
	}
	if err := lawful(tree, g, p); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

// lawful returns what is wrong with a placement. Each member must have one assignment, a member with a node must keep it, and each other
// member needs room on a node that is not excluded.
func lawful(tree *topology.Tree, g Gang, p Placement) error {
	defer tree.Undo(tree.Mark())
	var placed []Assignment
	seated := map[int]bool{}
	for _, assignment := range p.Assignments {
		k := slices.IndexFunc(g.Members, func(m Member) bool { return m.Slot == assignment.Slot })
		if k < 0 || seated[assignment.Slot] || assignment.Member != g.Members[k].Name {
			return fmt.Errorf("assignment %v is nobody's or another one's", assignment)
		}
		m := g.Members[k]
		seated[assignment.Slot] = true
		if m.Node != "" {
			if assignment.Node != m.Node {
				return fmt.Errorf("member %d was moved from %s to %s", assignment.Slot, m.Node, assignment.Node)
			}
			continue
		}
		role := g.Roles[m.Role]
		i, known := tree.Find(assignment.Node)
		if !known || !tree.Take(i, role.Requests) {
			return fmt.Errorf("node %q is over capacity or unknown", assignment.Node)
		}
		if cause, out := role.Out[assignment.Node]; out {
			return fmt.Errorf("member %d is on %s, which is %v", assignment.Slot, assignment.Node, cause)
		}
		if g.Agree != nil {
			if _, ok := g.Agree(assignment.Slot, assignment.Node, placed); !ok {
				return fmt.Errorf("member %d is on %s against Agree", assignment.Slot, assignment.Node)
			}
		}
		placed = append(placed, assignment)
	}
	if p.Placed != len(placed) {
		return fmt.Errorf("%d are said to be placed, and %d are", p.Placed, len(placed))
	}
	return nil
}

func checkRefusal(t *testing.T, seed int64, g Gang, r *Refusal, wanted, most int) {
	t.Helper()
	if r.Reason != InsufficientNodes || r.Wanted != wanted || r.Message == "" {
		t.Fatalf("seed %d: refusal %+v, wanted %d", seed, r, wanted)
	}
	// With several shapes Fits counts members in the order in which they were tried, so it may be lower than the maximum.
	if r.Fits > most || (len(g.Roles) == 1 && g.Agree == nil && r.Fits != most) {
		t.Fatalf("seed %d: %d fit, the twin says %d", seed, r.Fits, most)
	}
	sum := 0
	for _, nodes := range r.Excluded {
		sum += len(nodes)
	}
	if sum > r.Nodes {
		t.Fatalf("seed %d: %d nodes are excluded of %d", seed, sum, r.Nodes)
	}
}

func TestPlaceIsDeterministic(t *testing.T) {
	for seed := range seeds.All(t, int64(300)) {
		tree, g := simple(rand.New(rand.NewSource(seed)))
		p, r := Place(tree, g)
		for range 5 {
			if p2, r2 := Place(tree, g); !reflect.DeepEqual(p, p2) || !reflect.DeepEqual(r, r2) {
				t.Fatalf("seed %d: two answers to one question: %v %v and %v %v", seed, p, r, p2, r2)
			}
		}
	}
}

// someLevels returns as many levels as the nodes' paths are deep.
func someLevels(nodes []topology.Node) []topology.Level {
	var levels []topology.Level
	for _, n := range nodes {
		for len(levels) < len(n.Domain) {
			levels = append(levels, topology.Level{Name: "level-" + strconv.Itoa(len(levels))})
		}
	}
	return levels
}

func snapshot(tree *topology.Tree) map[string][2]int64 {
	all := map[string][2]int64{}
	for i := range tree.All() {
		all[tree.Name(i)] = [2]int64{tree.Free(i, "gpu"), tree.Free(i, "cpu")}
	}
	return all
}

// TestRulesAmongMembersWidenTheSearch: by counts one rack has room for all members, but only one member may be on a node.
func TestRulesAmongMembersWidenTheSearch(t *testing.T) {
	var nodes []topology.Node
	for i := range 32 {
		nodes = append(
			nodes,
			topology.Node{Name: fmt.Sprintf("n%02d", i), Domain: []string{"zone", fmt.Sprint("rack", i/16)}, Free: topology.Resources{"gpu": 8}},
		)
	}
	asked := 0
	g := Gang{
		Size:  20,
		Roles: []Role{{Requests: topology.Resources{"gpu": 1}}},
		Agree: func(m int, node string, assignments []Assignment) (Cause, bool) {
			asked++
			return oneEach(m, node, assignments)
		},
	}
	for slot := range g.Size {
		g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprintf("p%02d", slot)})
	}
	p, r := Place(topology.New([]topology.Level{{Name: "zone"}, {Name: "rack"}}, nodes...), g)
	if r != nil || p.Placed != g.Size {
		t.Fatalf("placed %d of %d: %v", p.Placed, g.Size, r)
	}
	if asked > 5000 {
		t.Errorf("%d questions, which are runs of filters", asked)
	}
}
