package restore

import (
	"math/rand"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/internal/seeds"
)

var first = protocoltest.FirstBranch

// reachable is a slow version of Find. reachable checks for each single rank whether its part of a step is available.
func reachable(step protocol.Point, pods []Pod, stored Stored, line Line, insist bool) bool {
	world := 0
	for _, p := range pods {
		world += p.Ranks
	}
	marks := []protocol.Mark{{}}
	for generation := range int64(4) {
		marks = append(marks, protocol.Mark{Step: step.Step, Generation: generation, Branch: step.Branch})
	}
	for _, s := range line {
		if step.Branch < s.Branch && step.Step > s.From {
			return false
		}
	}
	base, older, apart := 0, false, false
	for _, p := range pods {
		// All ranks of the pod that do not hold the step fetch the same mark; the zero mark: all of them hold the step.
		if !slices.ContainsFunc(marks, func(m protocol.Mark) bool {
			if m != (protocol.Mark{}) && (!insist && slices.Contains(p.Failed, m) || stored.World > 0 && stored.World != world) {
				return false
			}
			for local := range p.Ranks {
				held := !p.Gone && local < len(p.Held) && slices.Contains(p.Held[local], step)
				lies := m != (protocol.Mark{}) && (slices.Contains(stored.Whole, m) || slices.Contains(stored.Parts, Part{m, base + local}))
				if !held && !lies {
					return false
				}
				apart = apart || !held && m.Generation <= stored.Apart && stored.Apart > 0
			}
			return true
		}) {
			return false
		}
		for _, held := range p.Held {
			older = older || !p.Gone && slices.ContainsFunc(held, func(p protocol.Point) bool {
				return p.Branch < step.Branch || p.Branch == step.Branch && p.Step <= step.Step
			})
		}
		base += p.Ranks
	}
	return world > 0 && !(older && apart)
}

func TestFindIsTheNewestThatAllReach(t *testing.T) {
	found, fetched, later := 0, 0, 0
	newestFirst := append(
		[]protocol.Point{},
		protocol.Point{Branch: 1, Step: 4},
		protocol.Point{Branch: 1, Step: 3},
		protocol.Point{Branch: 1, Step: 2},
		protocol.Point{Branch: 1, Step: 1},
	)
	newestFirst = append(newestFirst, protocoltest.FirstBranch(4, 3, 2, 1)...)
	for seed := range seeds.All(t, int64(20_000)) {
		rng := rand.New(rand.NewSource(seed))
		some := func(n int, each func()) {
			for range rng.Intn(n) {
				each()
			}
		}
		mark := func() protocol.Mark {
			step, branch := int64(1+rng.Intn(4)), int64(rng.Intn(3)/2)
			return protocol.Mark{Step: step, Generation: 2*branch + step%2, Branch: branch} // a step is stored once
		}
		line := Line{}
		if rng.Intn(2) == 0 {
			line = line.Begin(1+rng.Int63n(2), rng.Int63n(4))
		}
		pods := make([]Pod, 1+rng.Intn(3))
		for i := range pods {
			p := &pods[i]
			p.Ranks, p.Gone = rng.Intn(3), rng.Intn(5) == 0
			some(4, func() {
				held, branch := []protocol.Point{}, int64(0)
				for step := int64(1); step < 5; step++ {
					if rng.Intn(6) == 0 {
						branch = 1
					}
					if rng.Intn(3) > 0 {
						held = append(held, protocol.Point{Branch: branch, Step: step})
					}
				}
				p.Held = append(p.Held, held)
			})
			some(2, func() { p.Failed = append(p.Failed, mark()) })
		}
		stored := Stored{World: rng.Intn(4), Apart: int64(rng.Intn(2))}
		some(3, func() { stored.Whole = append(stored.Whole, mark()) })
		some(4, func() { stored.Parts = append(stored.Parts, Part{mark(), rng.Intn(4)}) })
		for _, insist := range []bool{false, true} {
			want := protocol.Point{}
			for _, p := range newestFirst {
				if reachable(p, pods, stored, line, insist) {
					want = p
					break
				}
			}
			got := find(pods, stored, line, insist)
			if got.Point != want {
				t.Fatalf("seed %d, insist %t: %v, want %v: %+v %+v %+v", seed, insist, got.Point, want, pods, stored, line)
			}
			for _, p := range newestFirst {
				if !insist && Reaches(p, pods, stored, line) != reachable(p, pods, stored, line, false) {
					t.Fatalf("seed %d: whether %v can be had: %+v %+v %+v", seed, p, pods, stored, line)
				}
			}
			if got.Branch > 0 && got.Step < 4 {
				later++
			}
			if got.Step > 0 {
				found++
			}
			fetched += len(got.Fetch)
			for slot, m := range got.Fetch {
				if p := pods[slot]; m.Point() != got.Point || !insist && slices.Contains(p.Failed, m) {
					t.Fatalf("seed %d: slot %d fetches %v", seed, slot, m)
				}
			}
		}
	}
	if !seeds.One() && (found < 1000 || fetched < 1000 || later < 1000) {
		t.Errorf("%d points, %d fetches, %d points of a branch that is not the first: the histories show too little", found, fetched, later)
	}
}

// TestWhatNobodyElseHoldsCostsNothing: agents may report any number of steps and branches, three for each rank. Find checks each candidate
// in all ranks, and must stay fast.
func TestWhatNobodyElseHoldsCostsNothing(t *testing.T) {
	pods, next := make([]Pod, 20), int64(0)
	for i := range pods {
		pods[i] = Pod{Ranks: 100, Held: make([][]protocol.Point, 100), Gone: i == 0}
		for local := range pods[i].Held {
			pods[i].Held[local] = []protocol.Point{{Step: 7}, {Step: next + 100, Branch: next % 5}, {Step: next + 101, Branch: next % 7}}
			next += 2
		}
	}
	stored := Stored{
		Whole: []protocol.Mark{{Step: 7, Generation: 1}, {Step: 5, Generation: 1}},
		Parts: []Part{{Mark: protocol.Mark{Step: 6, Generation: 1}}},
	}
	if got := candidates(pods, stored, nil); len(got) != 5 {
		t.Errorf("%d steps are looked for", len(got))
	}
	if got := Find(pods, stored, nil); got.Step != 7 || len(got.Fetch) != 1 {
		t.Errorf("found is %+v", got)
	}
}

func TestInMemory(t *testing.T) {
	for _, tc := range []struct {
		held [][]protocol.Point
		line Line
		want protocol.Point
	}{
		{nil, nil, protocol.Point{}},
		{[][]protocol.Point{first(1, 2, 3), first(2, 3, 4), first(3, 5)}, nil, protocol.Point{Step: 3}},
		{[][]protocol.Point{first(1, 2), first(3)}, nil, protocol.Point{}},
		{[][]protocol.Point{first(1, 2), {}}, nil, protocol.Point{}},
		{[][]protocol.Point{first(50, 80), first(50, 80)}, Line{{1, 50}}, protocol.Point{Step: 50}},
		{[][]protocol.Point{{{Branch: 0, Step: 50}, {Branch: 1, Step: 60}}, {{Branch: 0, Step: 50}, {Branch: 1, Step: 60}}}, Line{{1, 50}}, protocol.Point{Branch: 1, Step: 60}},
		{[][]protocol.Point{{{Branch: 0, Step: 50}, {Branch: 1, Step: 60}}, {{Branch: 0, Step: 50}, {Branch: 0, Step: 60}}}, Line{{1, 50}}, protocol.Point{Step: 50}},
	} {
		if got := InMemory(tc.held, tc.line); got != tc.want {
			t.Errorf("%v on %v: %v, want %v", tc.held, tc.line, got, tc.want)
		}
	}
}

func TestLast(t *testing.T) {
	for want, inventory := range map[protocol.Point][]protocol.Point{
		{}:                   nil,
		{Step: 7}:            first(7),
		{Step: 9}:            first(3, 7, 9),
		{Branch: 1, Step: 6}: {{Branch: 0, Step: 5}, {Branch: 1, Step: 6}},
	} {
		if got := Last(inventory); got != want {
			t.Errorf("the last of %v is %v, want %v", inventory, got, want)
		}
	}
}

// TestNoStepIsZero: training without a saved step starts from the beginning. A record that names step 0 names no step to fetch.
func TestNoStepIsZero(t *testing.T) {
	zero := protocol.Mark{Generation: 1}
	if got := Find([]Pod{{Ranks: 1}}, Stored{Whole: []protocol.Mark{zero}}, nil); got.Step != 0 || got.Fetch != nil {
		t.Errorf("storage has step 0: %+v, want none", got)
	}
}
