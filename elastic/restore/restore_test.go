package restore

import (
	"math/rand"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// reachable is the slow twin of Find: whether each rank has its part of a step, asked of each rank alone.
func reachable(step int64, pods []Pod, stored Stored, insist bool) bool {
	world := 0
	for _, p := range pods {
		world += p.Ranks
	}
	marks := []protocol.Mark{{}}
	for generation := range int64(4) {
		marks = append(marks, protocol.Mark{Step: step, Generation: generation})
	}
	base, older, apart := 0, false, false
	for _, p := range pods {
		// One mark serves all ranks of the pod that do not hold the step; the zero mark where all hold it.
		if !slices.ContainsFunc(marks, func(m protocol.Mark) bool {
			if m != (protocol.Mark{}) && (!p.Gone && p.CannotFetch || !insist && slices.Contains(p.Failed, m) || stored.World > 0 && stored.World != world) {
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
			older = older || !p.Gone && slices.ContainsFunc(held, func(s int64) bool { return s <= step })
		}
		base += p.Ranks
	}
	return world > 0 && !(older && apart)
}

func TestFindIsTheNewestThatAllReach(t *testing.T) {
	found, fetched := 0, 0
	for seed := range seeds.All(t, int64(20_000)) {
		rng := rand.New(rand.NewSource(seed))
		some := func(n int, each func()) {
			for range rng.Intn(n) {
				each()
			}
		}
		mark := func() protocol.Mark {
			step := int64(1 + rng.Intn(4))
			return protocol.Mark{Step: step, Generation: step % 2} // a step is stored once
		}
		pods := make([]Pod, 1+rng.Intn(3))
		for i := range pods {
			p := &pods[i]
			p.Ranks, p.Gone, p.CannotFetch = rng.Intn(3), rng.Intn(5) == 0, rng.Intn(6) == 0
			some(4, func() {
				held := []int64{}
				for step := int64(1); step < 5; step++ {
					if rng.Intn(3) > 0 {
						held = append(held, step)
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
			want := int64(4)
			for ; want > 0 && !reachable(want, pods, stored, insist); want-- {
			}
			got := find(pods, stored, insist)
			if got.Step != want {
				t.Fatalf("seed %d, insist %t: step %d, want %d: %+v %+v", seed, insist, got.Step, want, pods, stored)
			}
			if got.Step > 0 {
				found++
			}
			fetched += len(got.Fetch)
			for slot, m := range got.Fetch {
				if p := pods[slot]; m.Step != got.Step || !insist && slices.Contains(p.Failed, m) || p.CannotFetch && !p.Gone {
					t.Fatalf("seed %d: slot %d fetches %v", seed, slot, m)
				}
			}
		}
	}
	if !seeds.One() && (found < 1000 || fetched < 1000) {
		t.Errorf("%d points, %d fetches: the histories show too little", found, fetched)
	}
}

func TestInMemory(t *testing.T) {
	for _, tc := range []struct {
		held [][]int64
		want int64
	}{
		{nil, 0},
		{[][]int64{{1, 2, 3}, {2, 3, 4}, {3, 5}}, 3},
		{[][]int64{{1, 2}, {3}}, 0},
		{[][]int64{{1, 2}, {}}, 0},
	} {
		if got := InMemory(tc.held); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.held, got, tc.want)
		}
	}
}

func TestLast(t *testing.T) {
	for want, inventory := range map[int64][]int64{0: nil, 7: {7}, 9: {3, 7, 9}} {
		if got := Last(inventory); got != want {
			t.Errorf("the last of %v is %d, want %d", inventory, got, want)
		}
	}
}

// TestNoStepIsZero: training that has saved nothing begins anew; a record that names step 0 is no point to fetch.
func TestNoStepIsZero(t *testing.T) {
	zero := protocol.Mark{Generation: 1}
	if got := Find([]Pod{{Ranks: 1}}, Stored{Whole: []protocol.Mark{zero}}); got.Step != 0 || got.Fetch != nil {
		t.Errorf("storage has step 0: %+v, want none", got)
	}
}
