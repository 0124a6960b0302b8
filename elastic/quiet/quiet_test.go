package quiet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
)

var start = time.Unix(1_700_000_000, 0)

// TestGaps: the digest's p99 is that of all gaps, or up to an eighth of an octave longer.
func TestGaps(t *testing.T) {
	for seed := range seeds.All(t, uint64(300)) {
		r := rand.New(rand.NewPCG(seed, 1))
		var g gaps
		var all []time.Duration
		for range 1 + r.IntN(3000) {
			gap := time.Duration(r.ExpFloat64() * float64(time.Second))
			g.add(gap)
			all = append(all, max(gap, shortest))
		}
		slices.Sort(all)
		want := all[len(all)-1-len(all)/100]
		if got, known := g.p99(); !known || got < want || float64(got) > 1.1*float64(want) {
			t.Fatalf("p99 of %d gaps is %s, want %s", len(all), got, want)
		}
	}
	var g gaps
	for range 100_000 {
		g.add(time.Hour)
	}
	for range halveAt * 100 {
		g.add(time.Second)
	}
	if got, _ := g.p99(); got > 2*time.Second || g.total > halveAt {
		t.Errorf("p99 is %s of %d gaps: earlier ones must be forgotten", got, g.total)
	}
}

// TestLimit: the limit follows the gaps of steps within its bounds.
func TestLimit(t *testing.T) {
	for _, c := range []struct{ gap, least, most time.Duration }{
		{100 * time.Millisecond, 15 * time.Second, 15 * time.Second},
		{5 * time.Second, 25 * time.Second, 28 * time.Second},
		{20 * time.Second, 45 * time.Second, 45 * time.Second},
		{time.Minute, 2 * time.Minute, 131 * time.Second},
	} {
		var w Watch
		now := start
		w.Begin(now)
		if got := w.Limit(); got != beforeFirst {
			t.Errorf("before the first step the limit is %s", got)
		}
		for range 200 {
			now = now.Add(c.gap)
			w.NoteStep(now)
		}
		if got := w.Limit(); got < c.least || got > c.most {
			t.Errorf("steps of %s: the limit is %s, want %s to %s", c.gap, got, c.least, c.most)
		}
		w.Begin(now)
		if got := w.Limit(); got < beforeFirst || got < 2*c.gap {
			t.Errorf("steps of %s: the limit before the first of another generation is %s", c.gap, got)
		}
		if w.BeginLaunch(now); w.Limit() != beforeFirst {
			t.Errorf("another launcher begins with a limit of %s", w.Limit())
		}
	}
}

// TestLooks: a quiet gang is looked at three times, five seconds apart, then every half minute; a step ends that.
func TestLooks(t *testing.T) {
	var w Watch
	w.Begin(start)
	w.NoteStep(start.Add(time.Second))
	var looks, judged []int
	numbers := []int64{}
	for s := 2; s <= 120; s++ {
		now := start.Add(time.Duration(s) * time.Second)
		switch w.Advance(0, now) {
		case Look:
			looks, numbers = append(looks, s), append(numbers, w.Wanted())
		case Judge:
			judged = append(judged, s)
		case Nothing:
			if w.State() == Looking && len(looks) != 2 { // the second look is never answered
				w.NoteAnswers()
			}
		}
	}
	// The limit is a minute: no gap is known yet.
	if want := []int{61, 66, 76, 106}; !slices.Equal(looks, want) {
		t.Errorf("looks at %v, want %v", looks, want)
	}
	if want := []int{78, 108}; !slices.Equal(judged, want) {
		t.Errorf("judged at %v, want %v", judged, want)
	}
	if !slices.IsSorted(numbers) || len(slices.Compact(slices.Clone(numbers))) != len(numbers) {
		t.Errorf("numbers %v", numbers)
	}
	if !w.NoteStep(start.Add(121*time.Second)) || w.Wanted() != 0 || w.State() != Moving || w.Longest() != 120*time.Second {
		t.Errorf("after a step it is %s and wants look %d, the longest silence was %s", w.State(), w.Wanted(), w.Longest())
	}
	if w.NoteStep(start.Add(122 * time.Second)) {
		t.Error("a step of a moving gang ends no look")
	}
}

// TestNumbersRise: a number that agents know from another coordinator, whatever its clock, is not used again.
func TestNumbersRise(t *testing.T) {
	var w Watch
	w.Begin(start)
	known := start.Add(time.Hour).Unix()
	if w.Advance(known, start.Add(beforeFirst)) != Look || w.Wanted() <= known {
		t.Errorf("look %d is wanted, agents know %d", w.Wanted(), known)
	}
}

// TestSeen: time without the reports of all agents is no time of a silence that was seen, neither now nor before, also after a restart.
func TestSeen(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	var w Watch
	w.Begin(at(0))
	w.NoteStep(at(1))
	w.NoteSight(true, at(5))
	w.NoteSight(false, at(11))
	if got := w.Seen(at(50)); got != 10*time.Second {
		t.Errorf("while an agent is away, %s were seen", got)
	}
	if !w.NoteSight(true, at(100)) || w.NoteSight(true, at(101)) || w.Seen(at(105)) != 15*time.Second {
		t.Errorf("after that %s were seen", w.Seen(at(105)))
	}
	w = New(0)
	w.Resume(at(1), 15*time.Second, true)
	w.NoteSight(true, at(1000))
	if got := w.Seen(at(1005)); got != 20*time.Second {
		t.Errorf("the next coordinator has seen %s", got)
	}
	if w.NoteLife(at(1005)); w.Longest() != 20*time.Second || w.Seen(at(1007)) != 2*time.Second {
		t.Errorf("the longest silence is %s, of the next one %s were seen", w.Longest(), w.Seen(at(1007)))
	}
}
