package barrier_test

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
)

const timeout = 5 * time.Second

var (
	start = time.Unix(1000, 0)
	pace  = barrier.Pace{Step: 100 * time.Millisecond, Interval: 100 * time.Millisecond}
)

// at returns the levels of ranks that have all finished a step and hold it.
func at(step int64) barrier.Levels {
	return barrier.Levels{Reported: step, LowestReported: step, Newest: step, CommonStep: step}
}

// TestHold: the barrier is ahead of the newest reported step by the steps that ranks do in LeadTime, plus one. If the pace is unknown, it
// is two steps ahead.
func TestHold(t *testing.T) {
	for step, want := range map[time.Duration]int64{0: 12, 100 * time.Millisecond: 14, time.Second: 12, time.Microsecond: 1010} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		if moved := b.Move(barrier.Pace{Step: step}, 10, timeout, start); !moved || b.Step() != want {
			t.Errorf("a step takes %s: held at %d, want %d", step, b.Step(), want)
		}
		if b.Move(barrier.Pace{Step: step}, 10, timeout, start.Add(time.Hour)) {
			t.Errorf("a step takes %s: the hold has moved to %d, and no rank was there", step, b.Step())
		}
	}
}

// TestHeld: ranks count as staying if none has moved for a short time after all agents have passed on the barrier step, for a longer time
// if some agents have not confirmed that, and after most in any case.
func TestHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		passed bool
		most   time.Duration
		after  time.Duration // all ranks are at the barrier
	}{
		"all have passed it on": {true, time.Minute, barrier.RestConfirmed},
		"it is not reported":    {false, time.Minute, time.Second},
		"there is no time":      {false, 300 * time.Millisecond, 300 * time.Millisecond},
	} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		b.Move(pace, 10, timeout, start)
		b.Note(at(10), tt.passed, start)
		came := start.Add(time.Second)
		b.Note(at(b.Step()), tt.passed, came)
		if b.AtBarrier(pace, tt.most, came.Add(tt.after-1)) || !b.AtBarrier(pace, tt.most, came.Add(tt.after)) {
			t.Errorf("%s: ranks are not taken to stay after %s", name, tt.after)
		}
	}
}

// TestMove: the barrier moves once if all ranks have saved different steps beyond it. It also moves if some ranks wait in a collective for
// ranks that stay.
func TestMove(t *testing.T) {
	b := barrier.Barrier{}
	b.Note(at(10), true, start)
	b.Move(pace, 10, timeout, start)
	first := b.Step()
	b.Note(barrier.Levels{Reported: first + 2, LowestReported: first + 1, Newest: first + 2, CommonStep: first - 1}, true, start)
	if !b.Move(pace, first+1, timeout, start) || b.Step() <= first+2 {
		t.Fatalf("ranks are apart, and the hold is %d after %d", b.Step(), first)
	}
	second := b.Step()
	b.Note(barrier.Levels{Reported: second + 1, LowestReported: second, Newest: second, CommonStep: second - 1}, true, start)
	if b.Move(pace, second-1, timeout, start.Add(timeout)) {
		t.Errorf("the hold has moved to %d although a copy may be about to be sealed", b.Step())
	}
	if !b.Move(pace, second-1, timeout, start.Add(timeout+1)) || b.Step() <= second+1 {
		t.Errorf("ranks are stuck, and the hold is %d after %d", b.Step(), second)
	}
}

// TestNotHeldElsewhere: ranks below the barrier, or at different steps beyond it, do not count as staying.
func TestNotHeldElsewhere(t *testing.T) {
	for name, levels := range map[string]barrier.Levels{
		"below": at(12),
		"apart": {Reported: 15, LowestReported: 14, Newest: 15, CommonStep: 14},
	} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		b.Move(pace, 10, timeout, start) // to 14
		b.Note(levels, true, start)
		if b.AtBarrier(pace, time.Minute, start.Add(time.Hour)) {
			t.Errorf("%s: ranks are taken to stay at %d", name, b.Step())
		}
	}
}

// TestRest: how long ranks must not have moved depends on when all agents had passed on the barrier step, and on the interval of reports.
func TestRest(t *testing.T) {
	const slow = 3 * time.Second
	for name, tt := range map[string]struct {
		toldAt int64 // the reported step at which all agents have passed on the barrier step; 0: they never do
		again  bool  // an agent without a coordinator releases its ranks
		beat   time.Duration
		rest   time.Duration
	}{
		"passed on in time":                        {10, false, pace.Interval, barrier.RestConfirmed},
		"passed on in time, steps reported seldom": {10, false, slow, barrier.RestConfirmed},
		"passed on when ranks were there":          {14, false, pace.Interval, 200 * time.Millisecond},
		"passed on late, steps reported seldom":    {14, false, slow, 2 * slow},
		"passed on late, by one that knows not":    {14, false, 0, time.Second},
		"not by all":                               {0, false, pace.Interval, time.Second},
		"not by all, steps reported seldom":        {0, false, slow, 2 * slow},
		"by all, but one is alone since":           {10, true, pace.Interval, time.Second},
	} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		b.Move(pace, 10, timeout, start) // to 14
		b.Note(at(10), tt.toldAt == 10, start)
		came := start.Add(time.Second)
		b.Note(at(14), tt.toldAt != 0, came)
		if tt.again {
			b.Note(at(14), false, came)
		}
		p := barrier.Pace{Step: pace.Step, Interval: tt.beat}
		if b.AtBarrier(p, time.Minute, came.Add(tt.rest-1)) || !b.AtBarrier(p, time.Minute, came.Add(tt.rest)) {
			t.Errorf("%s: ranks are not taken to stay after %s", name, tt.rest)
		}
	}
}

// TestMoveOnlyWhereItMust: the barrier moves once if each rank has saved a step beyond it and not the same one. It also moves if all ranks
// are held and some have not saved the step that they finished, after the longer of patience and two steps.
func TestMoveOnlyWhereItMust(t *testing.T) {
	const hold = 14
	for name, tt := range map[string]struct {
		levels       barrier.Levels
		lowestNewest int64
		step         time.Duration
		waited       time.Duration
		moves        bool
	}{
		"all hold it":                          {barrier.Levels{Reported: hold + 1, LowestReported: hold, Newest: hold + 1, CommonStep: hold}, hold, 0, 0, false},
		"each is just there, none the same":    {barrier.Levels{Reported: hold + 1, LowestReported: hold, Newest: hold + 1, CommonStep: hold - 1}, hold, 0, 0, true},
		"one is not there yet":                 {barrier.Levels{Reported: hold + 1, LowestReported: hold, Newest: hold + 1, CommonStep: hold - 1}, hold - 1, 0, 0, false},
		"stuck":                                {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold, CommonStep: hold - 1}, hold - 1, 0, timeout + 1, true},
		"not for long":                         {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold, CommonStep: hold - 1}, hold - 1, 0, timeout, false},
		"not for two steps":                    {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold, CommonStep: hold - 1}, hold - 1, timeout, 2 * timeout, false},
		"for more than two steps":              {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold, CommonStep: hold - 1}, hold - 1, timeout, 2*timeout + 1, true},
		"all hold what they finished":          {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold, CommonStep: hold}, hold - 1, 0, time.Hour, false},
		"one has not finished the step":        {barrier.Levels{Reported: hold, LowestReported: hold - 1, Newest: hold, CommonStep: hold - 1}, hold - 1, 0, time.Hour, false},
		"no rank holds the step or one beyond": {barrier.Levels{Reported: hold, LowestReported: hold, Newest: hold - 1, CommonStep: hold - 1}, hold - 1, 0, time.Hour, false},
	} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		b.Move(pace, 10, timeout, start)
		b.Note(tt.levels, true, start)
		if got := b.Move(barrier.Pace{Step: tt.step}, tt.lowestNewest, timeout, start.Add(tt.waited)); got != tt.moves {
			t.Errorf("%s: the hold moves: %v, want %v", name, got, tt.moves)
		}
	}
}

// TestMovesOnceForRanksThatAreApart: ranks that are apart move the barrier only once, because they could be apart again for ever.
func TestMovesOnceForRanksThatAreApart(t *testing.T) {
	b := barrier.Barrier{}
	b.Note(at(10), true, start)
	b.Move(pace, 10, timeout, start)
	for _, want := range []bool{true, false} {
		beyond := b.Step() + 1
		b.Note(barrier.Levels{Reported: beyond, LowestReported: beyond, Newest: beyond, CommonStep: beyond - 2}, true, start)
		if got := b.Move(pace, beyond, timeout, start); got != want {
			t.Errorf("held at %d: the hold moves on: %v, want %v", beyond-1, got, want)
		}
	}
}

// TestAhead: the estimate is the duration of a step for each step up to the barrier.
func TestAhead(t *testing.T) {
	b := barrier.Barrier{}
	b.Note(at(10), true, start)
	b.Move(pace, 10, timeout, start)
	b.Note(at(11), true, start)
	if got, want := b.Ahead(pace), 3*pace.Step; got != want {
		t.Errorf("the hold is %s ahead, want %s", got, want)
	}
}
