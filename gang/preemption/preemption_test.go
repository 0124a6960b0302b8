package preemption

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

const gpu = "example.com/gpu"

var levels = []topology.Level{{Name: "zone", Key: "zone"}, {Name: "rack", Key: "rack"}}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// cluster returns nodes n0, n1, … with gpus GPUs each, two in a rack and four in a zone.
func cluster(nodes int, gpus int64) World {
	w := World{Levels: levels}
	for i := range nodes {
		w.Nodes = append(
			w.Nodes,
			topology.Node{
				Name:   fmt.Sprintf("n%d", i),
				Domain: []string{fmt.Sprintf("z%d", i/4), fmt.Sprintf("r%d", i/2)},
				Free:   topology.Resources{gpu: gpus},
			},
		)
	}
	return w
}

// unit returns a unit that takes gpus GPUs on each of the nodes.
func unit(name string, priority int32, work int64, gpus int64, nodes ...string) Unit {
	u := Unit{Name: name, Priority: priority, LostWork: work}
	for _, n := range nodes {
		u.Pods = append(u.Pods, Pod{Node: n, Resources: topology.Resources{gpu: gpus}, Devices: true, Tenant: true})
	}
	return u
}

func wants(size int, gpus int64, t gang.Topology) gang.Gang {
	g := gang.Gang{Size: size, Topology: t, Roles: []gang.Role{{Requests: topology.Resources{gpu: gpus}}}}
	for i := range size {
		g.Members = append(g.Members, gang.Member{Slot: i, Name: fmt.Sprint("m", i)})
	}
	return g
}

func names(w World, c Selection) string {
	var all []string
	for _, u := range c.Victims {
		all = append(all, w.Units[u].Name)
	}
	return fmt.Sprint(all)
}

func TestSelectVictims(t *testing.T) {
	w := cluster(4, 4)
	for name, c := range map[string]struct {
		units   []Unit
		allowed []int
		g       gang.Gang
		want    string
		no      bool
	}{
		"the least work":       {units: []Unit{unit("a", 0, 100, 4, "n0", "n1"), unit("b", 0, 10, 4, "n2", "n3")}, g: wants(2, 4, gang.Topology{}), want: "[b] in rack z0/r1"},
		"priority before work": {units: []Unit{unit("a", 1, 1, 4, "n0", "n1"), unit("b", 0, 1000, 4, "n2", "n3")}, g: wants(2, 4, gang.Topology{}), want: "[b] in rack z0/r1"},
		"two of low priority rather than one that is higher": {units: []Unit{unit("a", 1, 1, 4, "n0", "n1"), unit("b", 0, 50, 4, "n2"), unit("c", 0, 50, 4, "n3")}, g: wants(2, 4, gang.Topology{}), want: "[b c] in rack z0/r1"},
		"a whole gang though one pod is in the way":          {units: []Unit{unit("a", 0, 10, 4, "n0", "n1", "n2", "n3")}, g: wants(1, 4, gang.Topology{}), want: "[a] in rack z0/r0"},
		"one gang rather than two halves":                    {units: []Unit{unit("a", 0, 60, 4, "n0", "n2"), unit("b", 0, 60, 4, "n1", "n3")}, g: wants(2, 4, gang.Topology{}), want: "[b] in zone z0"},
		"in one rack though it costs two":                    {units: []Unit{unit("a", 0, 60, 4, "n0", "n2"), unit("b", 0, 60, 4, "n1", "n3")}, g: wants(2, 4, gang.Topology{Required: "rack"}), want: "[a b] in rack z0/r0"},
		"those who leave already":                            {units: []Unit{{Name: "a", Terminating: true, Pods: unit("", 0, 0, 4, "n0", "n1").Pods}, unit("b", 0, 1, 4, "n2", "n3")}, g: wants(2, 4, gang.Topology{}), want: "[] in rack z0/r0"},
		"no more than the budget": {units: []Unit{{Name: "a", LostWork: 1, Budgets: map[int]int{0: 2}, Pods: unit("", 0, 0, 4, "n0", "n1").Pods}, unit("b", 0, 1000, 4, "n2", "n3")},
			allowed: []int{1}, g: wants(2, 4, gang.Topology{}), want: "[b] in rack z0/r1"},
		"one budget for two": {units: []Unit{{Name: "a", LostWork: 1, Budgets: map[int]int{0: 1}, Pods: unit("", 0, 0, 4, "n0").Pods}, {Name: "b", LostWork: 1, Budgets: map[int]int{0: 1}, Pods: unit("", 0, 0, 4, "n1").Pods}, unit("c", 0, 1000, 4, "n2", "n3")},
			allowed: []int{1}, g: wants(2, 4, gang.Topology{Required: "rack"}), want: "[c] in rack z0/r1"},
		"fewer pods of the same work": {units: []Unit{{Name: "a", LostWork: 5, Pods: append(unit("", 0, 0, 2, "n0").Pods, unit("", 0, 0, 2, "n0").Pods...)}, unit("b", 0, 5, 4, "n1"), unit("c", 0, 9, 4, "n2", "n3")},
			g: wants(1, 4, gang.Topology{}), want: "[b] in rack z0/r0"},
		"against every budget": {units: []Unit{{Name: "a", Budgets: map[int]int{0: 4}, Pods: unit("", 0, 0, 4, "n0", "n1", "n2", "n3").Pods}}, allowed: []int{3}, g: wants(2, 4, gang.Topology{}), no: true},
		"no use":               {units: []Unit{unit("a", 0, 10, 4, "n0", "n1", "n2", "n3")}, g: wants(5, 4, gang.Topology{}), no: true},
		"small ones that share a node with a dear one": {units: []Unit{unit("a", 0, 100, 2, "n0"), unit("b", 0, 1, 2, "n0"), unit("c", 0, 3, 4, "n1"), unit("d", 0, 3, 4, "n2"), unit("e", 0, 3, 4, "n3")}, g: wants(1, 2, gang.Topology{}), want: "[b] in rack z0/r0"},
		"whole nodes: all who are there":               {units: []Unit{unit("a", 0, 1, 1, "n0"), unit("b", 0, 1, 1, "n0"), unit("c", 0, 5, 4, "n1"), unit("d", 0, 5, 4, "n2"), unit("e", 0, 5, 4, "n3")}, g: wants(1, 2, gang.Topology{Whole: true}), want: "[a b] in rack z0/r0"},
	} {
		x := w
		x.Units, x.Allowed = c.units, c.allowed
		got, ok := SelectVictims(x, c.g)
		if said := names(x, got) + " in " + got.Domain; ok == c.no || (ok && said != c.want) || got.Truncated {
			t.Errorf("%s: %v %s, want %s; stopped %v", name, ok, said, c.want, got.Truncated)
		}
	}
}

// TestSelectVictimsForTheRest: members on nodes keep these, and only the other members get assignments.
func TestSelectVictimsForTheRest(t *testing.T) {
	w := cluster(4, 4)
	w.Nodes[0].Free = topology.Resources{gpu: 0}
	w.Units = []Unit{unit("a", 0, 9, 4, "n1"), unit("b", 0, 1, 4, "n2"), unit("c", 0, 1, 4, "n3")}
	g := wants(2, 4, gang.Topology{Required: "rack"})
	g.Members[0].Node = "n0"
	got, ok := SelectVictims(w, g)
	if said := names(w, got); !ok || said != "[a]" || len(got.Assignments) != 1 || got.Assignments[0].Member != "m1" ||
		got.Assignments[0].Node != "n1" {
		t.Errorf("%v %s %+v, want a to leave for m1", ok, said, got)
	}
}

// TestDomainOf: the domain of nodes is the narrowest common one that has a name.
func TestDomainOf(t *testing.T) {
	tree := topology.New(
		levels,
		topology.Node{Name: "a", Domain: []string{"z0", "r0"}},
		topology.Node{Name: "b", Domain: []string{"z0", "r0"}},
		topology.Node{Name: "c", Domain: []string{"z0", "r1"}},
		topology.Node{Name: "d", Domain: []string{"z1", ""}},
		topology.Node{Name: "e"},
	)
	for want, nodes := range map[string][]string{"rack z0/r0": {"a", "b"}, "zone z0": {"c", "b", "a"}, "zone z1": {"d"}, "": {"e"}} {
		var all []gang.Assignment
		for _, n := range nodes {
			all = append(all, gang.Assignment{Node: n})
		}
		if got := DomainOf(tree, all); got != want {
			t.Errorf("%v: %q, want %q", nodes, got, want)
		}
		if all = append(all, gang.Assignment{Node: "e"}); want != "" && DomainOf(tree, all) != "" {
			t.Errorf("%v and one that is in no zone: %q", nodes, DomainOf(tree, all))
		}
		if all = append(all, gang.Assignment{Node: "gone"}); DomainOf(tree, all) != "" {
			t.Errorf("%v and one that is gone: %q", nodes, DomainOf(tree, all))
		}
	}
}

func randomWorld(rng *rand.Rand) World {
	w := cluster(3+rng.Intn(6), int64(1+rng.Intn(4)))
	left := map[string]int64{}
	for _, n := range w.Nodes {
		left[n.Name] = n.Free[gpu]
	}
	for k := range 2 + rng.Intn(7) {
		u := Unit{Name: fmt.Sprint("u", k), Priority: int32(rng.Intn(3)), LostWork: int64(rng.Intn(6) * 10), Terminating: rng.Intn(8) == 0}
		size, each := 1+rng.Intn(3), int64(1+rng.Intn(2))
		for _, i := range rng.Perm(len(w.Nodes)) {
			n := w.Nodes[i].Name
			if len(u.Pods) == size || left[n] < each {
				continue
			}
			left[n] -= each
			u.Pods = append(
				u.Pods,
				Pod{Node: n, Resources: topology.Resources{gpu: each}, Devices: true, Tenant: true, Exclusive: rng.Intn(12) == 0},
			)
		}
		if len(u.Pods) == 0 {
			continue
		}
		if rng.Intn(4) == 0 {
			u.Budgets = map[int]int{0: len(u.Pods)}
		}
		w.Units = append(w.Units, u)
	}
	w.Allowed = []int{rng.Intn(4)}
	return w
}

func randomGang(rng *rand.Rand) gang.Gang {
	asks := []gang.Topology{{}, {}, {Required: "rack"}, {Required: "zone"}, {Whole: true}, {SliceLevel: "rack"}, {Preferred: "rack"}}
	g := wants(1+rng.Intn(5), int64(1+rng.Intn(3)), asks[rng.Intn(len(asks))])
	if rng.Intn(3) == 0 && g.Topology.SliceLevel == "" { // with slices of several shapes the search is not exact
		g.Roles = append(g.Roles, gang.Role{Requests: topology.Resources{gpu: int64(1 + rng.Intn(3))}})
		for i := range g.Members {
			g.Members[i].Role = rng.Intn(2)
		}
	}
	return g
}

// TestSurplusHoldsNothing: units are preempted, and room is reserved, as if the gang had only the members that it needs; if these have
// nodes, for none.
func TestSurplusHoldsNothing(t *testing.T) {
	idle, held := 0, 0
	for seed := range seeds.All(t, int64(500)) {
		rng := rand.New(rand.NewSource(seed))
		w, g := randomWorld(rng), randomGang(rng)
		least := g
		g.Min = 1 + rng.Intn(g.Size)
		for i := range rng.Intn(g.Size + 1) {
			g.Members[i].Node = w.Nodes[rng.Intn(len(w.Nodes))].Name
		}
		least.Members = append([]gang.Member(nil), g.Members[:max(g.Min, g.Size-countPending(g))]...)
		least.Size = len(least.Members)
		got, ok := SelectVictims(w, g)
		room, reserved := Reserve(w, g, start)
		if countPending(least) == 0 {
			idle++
			if ok || reserved {
				t.Fatalf("seed %d: for surplus alone: preempted %v %v, reserved %v %v", seed, ok, got, reserved, room)
			}
			continue
		}
		want, fits := SelectVictims(w, least)
		if ok != fits || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: with surplus %v %+v, without %v %+v", seed, ok, got, fits, want)
		}
		if reserved && len(room.Assignments) != countPending(least) {
			t.Fatalf("seed %d: %d needed, %+v reserved", seed, countPending(least), room.Assignments)
		}
		held += len(room.Assignments)
	}
	if !seeds.One() && (idle < 50 || held < 50) {
		t.Errorf("%d gangs had what they need, %d pods had room reserved: the test says little", idle, held)
	}
}

func countPending(g gang.Gang) (n int) {
	for _, m := range g.Members {
		if m.Node == "" {
			n++
		}
	}
	return n
}

// fitsWith reports whether the gang fits without the given units and terminating ones.
func fitsWith(w *World, g gang.Gang, gone []int) bool {
	x := w.all(w.index())
	for u := range w.Units {
		if !w.Units[u].Terminating && !slices.Contains(gone, u) {
			x.put(u)
		}
	}
	_, refusal := gang.Place(x.tree, g)
	return refusal == nil
}

// costOf returns the cost of a selection; ok is false if the budgets do not allow it.
func costOf(w *World, gone []int) (c Cost, ok bool) {
	spent := map[int]int{}
	for _, u := range gone {
		c = c.with(&w.Units[u])
		for b, n := range w.Units[u].Budgets {
			spent[b] += n
		}
	}
	for b, n := range spent {
		if n > w.Allowed[b] {
			return c, false
		}
	}
	return c, true
}

// Rules CheapestLeaves, NobodyForNothing and BudgetsKept of docs/designs/priority.md: in small clusters there is a selection exactly if
// some set of units suffices, and it costs as little as the cheapest such set.
func TestSelectVictimsAgainstEverySubset(t *testing.T) {
	chosen := 0
	for seed := range seeds.All(t, int64(500)) {
		rng := rand.New(rand.NewSource(seed))
		w, g := randomWorld(rng), randomGang(rng)
		var best *Cost
		for mask := range 1 << len(w.Units) {
			var gone []int
			for u := range w.Units {
				if mask>>u&1 == 1 && !w.Units[u].Terminating {
					gone = append(gone, u)
				} else if mask>>u&1 == 1 {
					gone = nil
					break
				}
			}
			if len(gone) == 0 && mask != 0 {
				continue
			}
			if c, ok := costOf(&w, gone); ok && (best == nil || c.Compare(*best) < 0) && fitsWith(&w, g, gone) {
				best = &c
			}
		}
		got, ok := SelectVictims(w, g)
		if ok != (best != nil) {
			t.Fatalf("seed %d: found %v, some subset would do: %v\n%+v\n%+v", seed, ok, best != nil, w, g)
		}
		if !ok {
			continue
		}
		if c, kept := costOf(&w, got.Victims); !kept || c.Compare(*best) != 0 || got.Cost.Compare(*best) != 0 || !fitsWith(&w, g, got.Victims) ||
			len(got.Assignments) != g.Size {
			t.Fatalf("seed %d: %+v kept %v, best %+v\n%+v\n%+v", seed, got, kept, *best, w, g)
		}
		chosen += min(1, len(got.Victims))
	}
	if !seeds.One() && chosen < 75 {
		t.Errorf("only %d worlds in which somebody had to leave", chosen)
	}
}

// Rule SameAnswer of docs/designs/priority.md: the answer is the same for any order of units and nodes.
func TestSelectVictimsIsTheSameWhateverTheOrder(t *testing.T) {
	for seed := range seeds.All(t, int64(200)) {
		rng := rand.New(rand.NewSource(seed))
		w, g := randomWorld(rng), randomGang(rng)
		x := w
		x.Units, x.Nodes = slices.Clone(w.Units), slices.Clone(w.Nodes)
		rng.Shuffle(len(x.Units), func(i, j int) { x.Units[i], x.Units[j] = x.Units[j], x.Units[i] })
		rng.Shuffle(len(x.Nodes), func(i, j int) { x.Nodes[i], x.Nodes[j] = x.Nodes[j], x.Nodes[i] })
		a, okA := SelectVictims(w, g)
		b, okB := SelectVictims(x, g)
		var said [2][]string
		for i, c := range []struct {
			w World
			c Selection
		}{{w, a}, {x, b}} {
			for _, u := range c.c.Victims {
				said[i] = append(said[i], c.w.Units[u].Name)
			}
			slices.Sort(said[i])
		}
		if okA != okB || !slices.Equal(said[0], said[1]) || !reflect.DeepEqual(a.Assignments, b.Assignments) {
			t.Fatalf("seed %d: %v %v\n%+v\n%+v", seed, said, []bool{okA, okB}, a, b)
		}
	}
}

// In a large cluster the search ends. Its answer is valid, though it may not be the cheapest.
func TestSelectVictimsInALargeCluster(t *testing.T) {
	w := World{Levels: levels}
	for i := range 2000 {
		w.Nodes = append(
			w.Nodes,
			topology.Node{
				Name:   fmt.Sprintf("n%04d", i),
				Domain: []string{fmt.Sprintf("z%d", i/500), fmt.Sprintf("r%03d", i/20)},
				Free:   topology.Resources{gpu: 8},
			},
		)
		w.Units = append(w.Units, unit(fmt.Sprintf("u%04d", i), int32(i%3), int64(i%97), 8, fmt.Sprintf("n%04d", i)))
	}
	for size, highest := range map[int]int32{300: 1, 100: 0} {
		g := wants(size, 8, gang.Topology{Required: "zone"})
		c, ok := SelectVictims(w, g)
		if !ok || len(c.Victims) != size || !c.Truncated || !fitsWith(&w, g, c.Victims) {
			t.Errorf("%v, %d leave for %d, stopped %v", ok, len(c.Victims), size, c.Truncated)
		}
		for _, u := range c.Victims {
			if w.Units[u].Priority > highest {
				t.Errorf("%s of priority %d leaves for %d", w.Units[u].Name, w.Units[u].Priority, size)
				break
			}
		}
	}
}
