package restore

import (
	"math/rand"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

func TestLine(t *testing.T) {
	line := Line{}.Begin(1, 50).Begin(2, 70)
	for p, on := range map[protocol.Point]bool{
		{Step: 50}: true, {Step: 51}: false, {Step: 80}: false,
		{Branch: 1, Step: 60}: true, {Branch: 1, Step: 70}: true, {Branch: 1, Step: 71}: false,
		{Branch: 2, Step: 71}: true, {Branch: 2, Step: 1 << 40}: true,
	} {
		if line.Has(p) != on {
			t.Errorf("%v on %v: %t", p, line, !on)
		}
	}
	if got := line.Ended(protocol.Point{Step: 60}); got != (Start{1, 50}) {
		t.Errorf("step 60 was ended by %v", got)
	}
	for name, c := range map[string]struct{ got, want Line }{
		"a later branch with a lower beginning makes those before needless": {line.Begin(3, 60), Line{{1, 50}, {3, 60}}},
		"with an equal one too":                {line.Begin(3, 50), Line{{3, 50}}},
		"with one below all":                   {line.Begin(3, 0), Line{{3, 0}}},
		"a branch goes back behind its start":  {line.Begin(2, 40), Line{{2, 40}}},
		"a branch does not begin again, later": {line.Begin(2, 90), line},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

// TestWhatIsGivenUpStaysSo: a given-up step is on no later line. All other steps are, except those older than the oldest branch of a line.
// In a line branches and steps both rise, and a line stays short.
func TestWhatIsGivenUpStaysSo(t *testing.T) {
	short := 0
	for seed := range seeds.All(t, int64(400)) {
		rng := rand.New(rand.NewSource(seed))
		line, starts := Line{}, []Start{}
		for branch := int64(1); branch <= 60; branch++ {
			from := rng.Int63n(20) + branch*rng.Int63n(30)
			line = line.Begin(branch, from)
			if starts = append(starts, Start{
				branch,
				from,
			}); len(line) > mostStarts || !slices.IsSortedFunc(line, func(a, b Start) int { return int(a.Branch - b.Branch) }) ||
				!slices.IsSortedFunc(line, func(a, b Start) int { return int(a.From - b.From) }) || line.Newest() != branch {
				t.Fatalf("seed %d: %v", seed, line)
			}
			for range 50 {
				p := protocol.Point{Branch: rng.Int63n(branch + 1), Step: rng.Int63n(branch*30 + 30)}
				on := !slices.ContainsFunc(starts, func(s Start) bool { return s.Branch > p.Branch && s.From < p.Step })
				switch {
				case line.Has(p) && !on:
					t.Fatalf("seed %d: %v was given up: %v", seed, p, line)
				case !line.Has(p) && on && p.Branch >= line[0].Branch:
					t.Fatalf("seed %d: %v was not given up: %v", seed, p, line)
				case !line.Has(p) && on:
					short++
				}
			}
		}
	}
	long := Line{}
	for branch := range int64(100) {
		long = long.Begin(branch+1, 10*branch+10)
	}
	if len(long) != mostStarts || long.Has(protocol.Point{Step: 11}) || !long.Has(protocol.Point{Step: 10}) ||
		!long.Has(protocol.Point{Branch: 99, Step: 1000}) {
		t.Errorf("a hundred branches, each after the one before: %v", long)
	}
}
