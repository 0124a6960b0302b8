package barrier_test

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
)

const patience = 5 * time.Second

var (
	start = time.Unix(1000, 0)
	pace  = barrier.Pace{Step: 100 * time.Millisecond, Beat: 100 * time.Millisecond}
)

// at lets all ranks be at a step, which all hold.
func at(step int64) barrier.Levels {
	return barrier.Levels{Told: step, LowestTold: step, Newest: step, Common: step}
}

// TestHold: the hold lies as many steps ahead as ranks take in LeadTime, and one; where their pace is not known, two.
func TestHold(t *testing.T) {
	for step, want := range map[time.Duration]int64{0: 12, 100 * time.Millisecond: 14, time.Second: 12, time.Microsecond: 1010} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		if moved := b.Move(barrier.Pace{Step: step}, 10, patience, start); !moved || b.Hold() != want {
			t.Errorf("a step takes %s: held at %d, want %d", step, b.Hold(), want)
		}
		if b.Move(barrier.Pace{Step: step}, 10, patience, start.Add(time.Hour)) {
			t.Errorf("a step takes %s: the hold has moved to %d, and nobody was there", step, b.Hold())
		}
	}
}

// TestHeld: ranks are taken to stay once nothing has moved for a moment after all agents passed the hold on, for longer where they do
// not say so, and at the latest after most.
func TestHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		passed bool
		most   time.Duration
		after  time.Duration // all are at the hold
	}{
		"all have passed it on": {true, time.Minute, barrier.RestHeard},
		"nobody says so":        {false, time.Minute, time.Second},
		"there is no time":      {false, 300 * time.Millisecond, 300 * time.Millisecond},
	} {
		b := barrier.Barrier{}
		b.Note(at(10), true, start)
		b.Move(pace, 10, patience, start)
		b.Note(at(10), tt.passed, start)
		came := start.Add(time.Second)
		b.Note(at(b.Hold()), tt.passed, came)
		if b.Held(pace, tt.most, came.Add(tt.after-1)) || !b.Held(pace, tt.most, came.Add(tt.after)) {
			t.Errorf("%s: ranks are not taken to stay after %s", name, tt.after)
		}
	}
}

// TestMove: the hold moves on once where all saved beyond it and not the same step, and where some wait for others that are held.
func TestMove(t *testing.T) {
	b := barrier.Barrier{}
	b.Note(at(10), true, start)
	b.Move(pace, 10, patience, start)
	first := b.Hold()
	b.Note(barrier.Levels{Told: first + 2, LowestTold: first + 1, Newest: first + 2, Common: first - 1}, true, start)
	if !b.Move(pace, first+1, patience, start) || b.Hold() <= first+2 {
		t.Fatalf("ranks are apart, and the hold is %d after %d", b.Hold(), first)
	}
	second := b.Hold()
	b.Note(barrier.Levels{Told: second + 1, LowestTold: second, Newest: second, Common: second - 1}, true, start)
	if b.Move(pace, second-1, patience, start.Add(patience)) {
		t.Errorf("the hold has moved to %d although a copy may be about to be sealed", b.Hold())
	}
	if !b.Move(pace, second-1, patience, start.Add(patience+1)) || b.Hold() <= second+1 {
		t.Errorf("ranks are stuck, and the hold is %d after %d", b.Hold(), second)
	}
}
