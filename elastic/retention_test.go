package elastic

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/internal/seeds"
)

// shelf has the steps that users want to keep, the steps promised to users, and the removals that agents were ordered to do.
type shelf struct {
	wish Retention
	// promised has the pins that were in the stored record while users requested them: users can rely on these.
	promised map[protocol.Mark]bool
	// removals are the ordered removals. An agent may carry out each one later, only in part, or several times.
	removals []protocol.Manifest
	removed  int
}

func mark(step, generation int64) protocol.Mark {
	return protocol.Mark{Step: step, Generation: generation}
}

// inFiles returns the steps that are in storage, in order.
func (w *world) inFiles() []protocol.Mark {
	return slices.SortedFunc(maps.Keys(w.files), func(a, b protocol.Mark) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Step, b.Step))
	})
}

// ordered records that an agent has written a manifest. The agent will later remove what the manifest allows.
func (w *world) ordered(m protocol.Manifest) {
	w.removals = append(w.removals[max(0, len(w.removals)-9):], m)
}

// remove carries out a part of an ordered removal and checks that no removed step is still needed.
func (w *world) remove() {
	if len(w.removals) == 0 {
		return
	}
	m := w.removals[w.rng.Intn(len(w.removals))]
	for _, of := range w.inFiles() {
		older := of.Generation < m.Below.Generation || of.Generation == m.Below.Generation && of.Step < m.Below.Step
		if !older || slices.Contains(m.Recorded, of) || w.rng.Intn(3) == 0 { // the agent may die during the removal
			continue
		}
		if w.promised[of] {
			w.failf("a pinned step stays", "%+v goes, by the order for %+v: %+v", of, m.Mark, m.Recorded)
		}
		if slices.ContainsFunc(w.stored.durable(), func(d StoredStep) bool { return d.Mark == of }) {
			w.failf("what is recorded stays", "%+v goes, by the order for %+v: %+v", of, m.Mark, m.Recorded)
		}
		delete(w.files, of)
		w.removed++
	}
}

// wishes changes the users' pins, and sends the coordinator either the new pins or the earlier ones.
func (w *world) wishes() {
	old := w.wish
	w.wish.Version++
	w.wish.Pins = slices.Clone(old.Pins)
	switch d := w.stored.Older; {
	case len(old.Pins) > 3 || len(old.Pins) > 0 && w.rng.Intn(3) == 0:
		i := w.rng.Intn(len(old.Pins))
		delete(w.promised, old.Pins[i])
		w.wish.Pins = slices.Delete(w.wish.Pins, i, i+1)
	case len(w.files) > 0 && w.rng.Intn(3) == 0: // any step in storage, recorded or not
		m := w.inFiles()[w.rng.Intn(len(w.files))]
		if !slices.Contains(old.Pins, m) {
			w.wish.Pins = append(w.wish.Pins, m)
		}
	case d != nil && !slices.Contains(old.Pins, d.Mark):
		w.wish.Pins = append(w.wish.Pins, d.Mark)
	}
	w.tell(old)
	if w.rng.Intn(4) > 0 {
		w.tell(w.wish)
	}
}

// tell sends the coordinator a retention setting, unless the Job has ended.
func (w *world) tell(r Retention) {
	w.apply(Retain{Retention: r})
}

// promise records the pins that users see in the stored record.
func (w *world) promise() {
	for _, d := range w.stored.Pinned {
		if slices.Contains(w.wish.Pins, d.Mark) {
			w.promised[d.Mark] = true
		}
	}
}

// TestPinsOutliveAllRemovals plays random histories. Users pin and unpin steps. Removals are late, partial, or done by agents of pods that
// were deleted. Coordinators and agents die at any time. Every pin in the stored record must exist in storage.
func TestPinsOutliveAllRemovals(t *testing.T) {
	removed, promised, kept := 0, 0, 0
	for seed := range seeds.All(t, int64(200)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, 1+int(seed%3))
			w.unstored = false
			w.state = New(len(w.agents), w.interval(), Record{})
			w.shelf = &shelf{
				promised: map[protocol.Mark]bool{},
				wish:     Retention{Keep: int(seed % 5), Every: time.Duration(seed%4) * 5 * time.Second},
			}
			w.tell(w.wish)
			for range 8 {
				for range 400 {
					w.chaos()
					switch w.rng.Intn(40) {
					case 0:
						w.wishes()
					case 1, 2, 3:
						w.remove()
					case 4:
						w.crash()
					}
				}
				w.settle()
				if w.state.Final() {
					break
				}
				promised, kept = promised+len(w.promised), kept+len(w.state.rec().Kept)
			}
			removed += w.removed
		})
	}
	t.Logf("%d steps removed, %d pins promised, %d steps kept", removed, promised, kept)
	if !seeds.One() && (removed < 150 || promised < 200 || kept < 200) {
		t.Errorf("%d steps were removed, %d pins promised, %d steps kept: too few to show anything", removed, promised, kept)
	}
}

// stepAt returns a recorded step.
func stepAt(step, generation int64) StoredStep {
	return StoredStep{Mark: mark(step, generation), At: time.Unix(1_700_000_000+step, 0)}
}

// retained returns a running gang with two recorded steps.
func retained() *State {
	durable, older := stepAt(20, 1), stepAt(10, 1)
	durable.At = durable.At.Add(-time.Hour)
	return New(
		1,
		time.Minute,
		Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{Ranks: 1}}, Durable: &durable, Older: &older},
	)
}

// TestAWishThatIsOlderChangesNothing: an outdated cache of the controller may send the pins from before a user's change. The coordinator
// ignores them.
func TestAWishThatIsOlderChangesNothing(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	Step(s, Retain{Retention{Gang: "g", Version: 2, Pins: []protocol.Mark{mark(10, 1)}}}, now)
	effects := Step(s, Retain{Retention{Gang: "g", Version: 1}}, now)
	if len(s.rec().Pinned) != 1 || len(effects) > 0 {
		t.Errorf("pinned are %+v, and it asks for %+v", s.rec().Pinned, effects)
	}
	if Step(s, Retain{Retention{Gang: "made anew", Version: 1}}, now); len(s.rec().Pinned) != 0 {
		t.Errorf("of a Gang that was made anew: pinned are %+v", s.rec().Pinned)
	}
}

// TestPinsAreStoredAtOnce: a changed pin is stored at once, because a user waits for the record.
func TestPinsAreStoredAtOnce(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	for version, pins := range [][]protocol.Mark{{mark(10, 1)}, nil} {
		stored := false
		for _, e := range Step(s, Retain{Retention{Version: int64(version), Pins: pins}}, now) {
			if p, ok := e.(Persist); ok {
				stored = len(p.Record.Pinned) == len(pins)
			}
		}
		if !stored {
			t.Errorf("%d pins: nothing is to be stored", len(pins))
		}
	}
	for times, want := range [][]int64{{5}, nil} { // a request that changes no pin is answered once
		var stored []int64
		for _, e := range Step(s, Retain{Retention{Version: 3, PinWish: 5}}, now) {
			if p, ok := e.(Persist); ok {
				stored = append(stored, p.Record.PinWish)
			}
		}
		if !slices.Equal(stored, want) {
			t.Errorf("heard %d times: wishes %v are to be stored, want %v", times+1, stored, want)
		}
	}
	Step(s, Over{}, now)
	if effects := Step(s, Retain{Retention{Version: 9, Pins: []protocol.Mark{mark(10, 1)}}}, now); len(effects) > 0 {
		t.Errorf("of a Job that is over: %+v", effects)
	}
	s = New(1, time.Minute, Record{Generation: 1, Verdict: &Verdict{Reason: ReasonFinished}, Durable: &StoredStep{Mark: mark(10, 1)}})
	for _, e := range Step(s, Retain{Retention{Version: 1, Pins: []protocol.Mark{mark(10, 1)}}}, now) {
		if _, ok := e.(Persist); ok {
			t.Errorf("of a gang that has ended: %+v", e)
		}
	}
}

// TestGapFromSealedToDurable measures, by the clock of the test, the time from when all ranks held a step until the record that names the
// step is stored. Each step is measured once.
func TestGapFromSealedToDurable(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	r := protocol.Report{
		Incarnation: 1,
		Ranks:       1,
		Address:     "10.0.0.1",
		Port:        4000,
		Generation:  1,
		State:       protocol.StateRunning,
		Storage:     true,
		StateBytes:  1 << 20,
		Rank:        []protocol.Rank{{Step: 20, Sealed: protocoltest.FirstBranch(20)}},
	}
	var gaps []time.Duration
	say := func(after time.Duration, change func()) (revision int64) {
		now = now.Add(after)
		r.Rank = slices.Clone(r.Rank) // the core keeps the previous slice
		change()
		r.Sequence++
		for _, e := range Step(s, Reported{Pod: Pod{UID: "uid", Name: "pod"}, Report: r}, now) {
			if p, ok := e.(Persist); ok {
				revision = p.Revision
			}
			if g, ok := e.(MadeDurable); ok {
				gaps = append(gaps, g.Gap)
			}
		}
		return revision
	}
	store := func(after time.Duration, revision int64) {
		now = now.Add(after)
		for _, e := range Step(s, Stored{Revision: revision, Generation: 1}, now) {
			if g, ok := e.(MadeDurable); ok {
				gaps = append(gaps, g.Gap)
			}
		}
	}
	say(0, func() {})
	// all ranks hold the step: the time starts here
	say(time.Second, func() { r.Rank[0].Step, r.Rank[0].Sealed = 30, protocoltest.FirstBranch(20, 30) })
	say(4*time.Second, func() { r.Rank[0].Step, r.Rank[0].Sealed = 40, protocoltest.FirstBranch(30, 40) })
	say(3*time.Second, func() { r.Rank[0].Copied = protocol.Copied{Mark: mark(30, 1)} })
	revision := say(2*time.Second, func() { r.Manifested = mark(30, 1) })
	if revision == 0 || len(gaps) > 0 {
		t.Fatalf("revision %d is to be stored, told are %v", revision, gaps)
	}
	store(500*time.Millisecond, revision)
	store(time.Minute, revision)
	if want := []time.Duration{9500 * time.Millisecond}; !slices.Equal(gaps, want) || s.rec().Durable.Step != 30 {
		t.Errorf("gaps are %v, want %v; durable is %+v", gaps, want, s.rec().Durable)
	}
	store(time.Second, s.revision)
	if len(gaps) != 1 {
		t.Errorf("gaps are %v", gaps)
	}
}
