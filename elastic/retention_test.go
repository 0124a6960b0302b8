package elastic

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/internal/seeds"
)

// shelf is what people wish to be kept in storage, what they were promised, and removals that agents were told to do.
type shelf struct {
	wish Retention
	// promised are the pins that the stored record named while people wished for them: all that a user goes by.
	promised map[protocol.Mark]bool
	// removals were ordered, and are done by someone at some time, in part, or more than once.
	removals []protocol.Manifest
	removed  int
}

func mark(step, generation int64) protocol.Mark {
	return protocol.Mark{Step: step, Generation: generation}
}

// inFiles are the steps that lie in storage, in order.
func (w *world) inFiles() []protocol.Mark {
	return slices.SortedFunc(maps.Keys(w.files), func(a, b protocol.Mark) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Step, b.Step))
	})
}

// ordered: an agent wrote a manifest and goes on to remove what that tells it to, when it comes to it.
func (w *world) ordered(m protocol.Manifest) {
	w.removals = append(w.removals[max(0, len(w.removals)-9):], m)
}

// remove does what some agent was told to, in part, and checks that nobody misses what goes.
func (w *world) remove() {
	if len(w.removals) == 0 {
		return
	}
	m := w.removals[w.rng.Intn(len(w.removals))]
	for _, of := range w.inFiles() {
		older := of.Generation < m.Below.Generation || of.Generation == m.Below.Generation && of.Step < m.Below.Step
		if !older || slices.Contains(m.Recorded, of) || w.rng.Intn(3) == 0 { // the agent may die in the middle
			continue
		}
		if w.promised[of] {
			w.failf("a pinned step stays", "%+v goes, by the order for %+v: %+v", of, m.Mark, m.Recorded)
		}
		if slices.ContainsFunc((&State{Record: w.stored}).durable(), func(d StoredStep) bool { return d.Mark == of }) {
			w.failf("what is recorded stays", "%+v goes, by the order for %+v: %+v", of, m.Mark, m.Recorded)
		}
		delete(w.files, of)
		w.removed++
	}
}

// wishes has people change their minds, and the coordinator hear of it, or of what they wished before.
func (w *world) wishes() {
	old := w.wish
	w.wish.Version++
	w.wish.Pins = slices.Clone(old.Pins)
	switch d := w.stored.Older; {
	case len(old.Pins) > 3 || len(old.Pins) > 0 && w.rng.Intn(3) == 0:
		i := w.rng.Intn(len(old.Pins))
		delete(w.promised, old.Pins[i])
		w.wish.Pins = slices.Delete(w.wish.Pins, i, i+1)
	case len(w.files) > 0 && w.rng.Intn(3) == 0: // whatever lies there, recorded or not
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

// tell has the coordinator hear a wish. Of a Job that is over it needs none.
func (w *world) tell(r Retention) {
	w.apply(Retain{Retention: r})
}

// promise notes what people see in the stored record.
func (w *world) promise() {
	for _, d := range w.stored.Pinned {
		if slices.Contains(w.wish.Pins, d.Mark) {
			w.promised[d.Mark] = true
		}
	}
}

// TestPinsOutliveAllRemovals plays random histories in which people pin and unpin steps while removals go on late, in part and by
// agents of pods that are gone, and coordinators and agents die anywhere. What the stored record named as pinned is there.
func TestPinsOutliveAllRemovals(t *testing.T) {
	removed, promised, kept := 0, 0, 0
	for seed := range seeds.All(t, int64(200)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, 1+int(seed%3))
			w.unstored = false
			w.state = New(len(w.agents), w.interval(), Record{})
			w.shelf = &shelf{promised: map[protocol.Mark]bool{}, wish: Retention{Keep: int(seed % 5), Every: time.Duration(seed%4) * 5 * time.Second}}
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
				promised, kept = promised+len(w.promised), kept+len(w.state.Record.Kept)
			}
			removed += w.removed
		})
	}
	t.Logf("%d steps removed, %d pins promised, %d steps kept", removed, promised, kept)
	if !seeds.One() && (removed < 150 || promised < 200 || kept < 200) {
		t.Errorf("%d steps were removed, %d pins promised, %d steps kept: too few to show anything", removed, promised, kept)
	}
}

// stepAt is a recorded step.
func stepAt(step, generation int64) StoredStep {
	return StoredStep{Mark: mark(step, generation), At: time.Unix(1_700_000_000+step, 0)}
}

func TestPinned(t *testing.T) {
	recorded := []StoredStep{stepAt(40, 3), stepAt(30, 2)}
	before := []StoredStep{stepAt(10, 1)}
	for name, c := range map[string]struct {
		wishes []protocol.Mark
		want   []StoredStep
	}{
		"nothing is wished":             {nil, nil},
		"a recorded one":                {[]protocol.Mark{mark(30, 2)}, []StoredStep{stepAt(30, 2)}},
		"one that was pinned before":    {[]protocol.Mark{mark(10, 1), mark(40, 3)}, []StoredStep{stepAt(10, 1), stepAt(40, 3)}},
		"one that is not recorded":      {[]protocol.Mark{mark(20, 2)}, nil},
		"the step of another one":       {[]protocol.Mark{mark(30, 3)}, nil},
		"one of two is taken off again": {[]protocol.Mark{mark(40, 3)}, []StoredStep{stepAt(40, 3)}},
	} {
		if got := Pinned(c.wishes, before, recorded); !slices.Equal(got, c.want) {
			t.Errorf("%s: pinned are %+v, want %+v", name, got, c.want)
		}
	}
}

// retained is a gang that runs with two recorded steps.
func retained() *State {
	durable, older := stepAt(20, 1), stepAt(10, 1)
	return New(1, time.Minute, Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{Ranks: 1}}, Durable: &durable, Older: &older})
}

// TestAWishThatIsOlderChangesNothing: a controller's cache may tell what people wished before they pinned.
func TestAWishThatIsOlderChangesNothing(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	Step(s, Retain{Retention{Gang: "g", Version: 2, Pins: []protocol.Mark{mark(10, 1)}}}, now)
	effects := Step(s, Retain{Retention{Gang: "g", Version: 1}}, now)
	if len(s.Record.Pinned) != 1 || len(effects) > 0 {
		t.Errorf("pinned are %+v, and it asks for %+v", s.Record.Pinned, effects)
	}
	if Step(s, Retain{Retention{Gang: "made anew", Version: 1}}, now); len(s.Record.Pinned) != 0 {
		t.Errorf("of a Gang that was made anew: pinned are %+v", s.Record.Pinned)
	}
}

// TestPinsAreStoredAtOnce: who pins waits for the record.
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
	for times, want := range [][]int64{{5}, nil} { // a wish that changes nothing is answered, once
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

// TestWhatARemovalSpares: the line is the older of the two newest, whatever is pinned far below; a wish that the record does not
// know is spared, for a Gang that was made anew has forgotten it.
func TestWhatARemovalSpares(t *testing.T) {
	s := retained()
	Step(s, Retain{Retention{Pins: []protocol.Mark{mark(10, 1), mark(3, 1)}}}, time.Unix(1_700_000_000, 0))
	next := stepAt(30, 1)
	s.Record.Durable, s.Record.Older = &next, s.Record.Durable
	m := s.manifest(mark(40, 1))
	if want := []protocol.Mark{mark(30, 1), mark(20, 1), mark(10, 1), mark(3, 1)}; m.Below != mark(20, 1) || !slices.Equal(m.Recorded, want) {
		t.Errorf("below %+v all but %+v goes, want %+v", m.Below, m.Recorded, want)
	}
	s.Record.Durable, s.Record.Older = nil, nil
	if m := s.manifest(mark(40, 1)); len(m.Recorded) > 0 || m.Below.Step > 0 {
		t.Errorf("no step is recorded, and below %+v all but %+v goes", m.Below, m.Recorded)
	}
}

// copied has the pod of slot 0 report that it runs and has copied a step.
func copied(s *State, step int64) {
	s.members.Take(0, Pod{UID: "uid"}, &protocol.Report{
		Ranks: 1, Generation: 1, State: protocol.StateRunning, Storage: true,
		Rank: []protocol.Rank{{Sealed: protocoltest.FirstBranch(step), Copied: protocol.Copied{Mark: mark(step, 1)}}},
	}, 1, time.Unix(1_700_000_000, 0))
}

// TestRemovalsGoByTheStoredRecord: a coordinator that cannot store its record any more, because another one leads, has nothing
// removed that the stored one names and that people may pin there.
func TestRemovalsGoByTheStoredRecord(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	copied(s, 40)
	s.recordDurable(mark(30, 1), now)
	s.save()
	s.run.copying = &copying{mark: mark(40, 1)}
	if s.preserve(now); s.run.copying.ordered() {
		t.Errorf("%+v is ordered while the record of step 30 is on its way", s.run.copying.manifest)
	}
	Step(s, Stored{Revision: s.revision, Generation: 1}, now)
	if s.preserve(now); !s.run.copying.ordered() || s.run.copying.manifest.Below != mark(20, 1) {
		t.Errorf("ordered is %+v", s.run.copying.manifest)
	}
}

// TestUnpinnedStepsGoOnceThatIsStored: until then the stored record promises them, to the coordinator that comes next and to who pins them again.
func TestUnpinnedStepsGoOnceThatIsStored(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	s.Record.Pinned = []StoredStep{stepAt(3, 1)}
	copied(s, 40)
	s.run.copying = &copying{mark: mark(40, 1)}
	Step(s, Retain{Retention{Version: 1}}, now)
	if s.preserve(now); s.run.copying.ordered() {
		t.Errorf("%+v is ordered while the store still has the pin", s.run.copying.manifest)
	}
	Step(s, Stored{Revision: s.revision, Generation: 1}, now)
	if m := s.run.copying.manifest; !s.run.copying.ordered() || slices.Contains(m.Recorded, mark(3, 1)) {
		t.Errorf("ordered is %+v", m)
	}
}

// recordedAt are steps that became durable at so many seconds, newest first.
func recordedAt(seconds ...int) []StoredStep {
	var out []StoredStep
	for _, s := range seconds {
		out = append(out, StoredStep{Mark: mark(int64(s), 1), At: time.Unix(int64(s), 0)})
	}
	return out
}

func TestKept(t *testing.T) {
	for name, c := range map[string]struct {
		recorded  []StoredStep
		retention Retention
		want      []StoredStep
	}{
		"none":                             {nil, Retention{Keep: 5, Every: time.Second}, nil},
		"two where nothing is said":        {recordedAt(40, 30, 20, 10), Retention{}, recordedAt(40, 30)},
		"never fewer than two":             {recordedAt(40, 30, 20), Retention{Keep: 1}, recordedAt(40, 30)},
		"by number":                        {recordedAt(40, 30, 20, 10), Retention{Keep: 3}, recordedAt(40, 30, 20)},
		"by time, the first and each next": {recordedAt(100, 90, 62, 59, 31, 30, 1), Retention{Every: 30 * time.Second}, recordedAt(100, 90, 62, 31, 1)},
		"by both":                          {recordedAt(100, 90, 80, 59, 31, 30, 1), Retention{Keep: 3, Every: time.Minute}, recordedAt(100, 90, 80, 1)},
		"a clock that was set back":        {recordedAt(90, 80, 30, 900, 10), Retention{Every: time.Minute}, recordedAt(90, 80, 30, 900, 10)},
	} {
		if got := Kept(c.recorded, c.retention); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v stay, want %+v", name, got, c.want)
		}
	}
}

// TestKeptForLong: a job goes on for long, at an uneven pace. What stays is bounded, each step that goes is gone for good, the newest
// are there, and as far back as the bound reaches there is a step at least each time and a pace.
func TestKeptForLong(t *testing.T) {
	const every, pace, most = time.Hour, 12 * time.Minute, keptMost + keptEveryMost
	for seed := range seeds.All(t, int64(30)) {
		rng := rand.New(rand.NewSource(seed))
		r, now, gone := Retention{Keep: rng.Intn(2 * keptMost), Every: every}, time.Unix(1_700_000_000, 0), map[int64]bool{}
		var recorded []StoredStep
		for step := int64(1); step < 1000; step++ {
			now = now.Add(time.Duration(rng.Int63n(int64(pace))))
			before := append([]StoredStep{{Mark: mark(step, 1), At: now}}, recorded...)
			recorded = Kept(before, r)
			for _, d := range before {
				gone[d.Step] = gone[d.Step] || !slices.Contains(recorded, d)
			}
			for i, d := range recorded {
				if gone[d.Step] || i > 0 && recorded[i-1].At.Sub(d.At) > every+pace {
					t.Fatalf("seed %d, step %d: %+v stay", seed, step, recorded)
				}
			}
			if newest := min(len(before), keptMost, max(keptLeast, r.Keep)); len(recorded) > most || !slices.Equal(recorded[:newest], before[:newest]) {
				t.Fatalf("seed %d, step %d: %d stay, %+v", seed, step, len(recorded), recorded)
			}
		}
		if span := recorded[0].At.Sub(recorded[len(recorded)-1].At); span < keptEveryMost*every {
			t.Errorf("seed %d: steps of %s stay, want %d times %s", seed, span, keptEveryMost, every)
		}
	}
}

// TestGoingBackPastTheNewest: what is kept takes the place of newer steps that are given up, and a removal spares it.
func TestGoingBackPastTheNewest(t *testing.T) {
	s := retained()
	s.setDurable(recordedAt(40, 30, 20, 10))
	s.forget(protocol.Point{Step: 25})
	if d := s.durable(); !slices.Equal(d, recordedAt(20, 10)) || len(s.Record.Kept) != 0 {
		t.Errorf("recorded are %+v", d)
	}
	s.setDurable(recordedAt(40, 30, 20, 10))
	if m := s.manifest(mark(50, 1)); m.Below != mark(30, 1) || len(m.Recorded) != 4 {
		t.Errorf("below %+v all but %+v goes", m.Below, m.Recorded)
	}
	var many []int
	for step := 100; step > 0; step-- {
		many = append(many, step)
	}
	s.setDurable(recordedAt(many...))
	if w := s.inStorage().Whole; len(w) != restore.MostWhole || w[0] != mark(100, 1) {
		t.Errorf("%d steps may be gone back to: %+v", len(w), w)
	}
}

// TestGapFromSealedToDurable goes by the clock that it is given: from when all ranks held the step to when the record that names it
// is stored, each step once.
func TestGapFromSealedToDurable(t *testing.T) {
	s, now := retained(), time.Unix(1_700_000_000, 0)
	s.Record.Durable.At = now.Add(-time.Hour)
	r := protocol.Report{Incarnation: 1, Ranks: 1, Address: "10.0.0.1", Port: 4000, Generation: 1, State: protocol.StateRunning, Storage: true, StateBytes: 1 << 20, Rank: []protocol.Rank{{Step: 20, Sealed: protocoltest.FirstBranch(20)}}}
	var gaps []time.Duration
	say := func(after time.Duration, change func()) (revision int64) {
		now = now.Add(after)
		r.Rank = slices.Clone(r.Rank) // the core keeps the one before
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
	say(time.Second, func() { r.Rank[0].Step, r.Rank[0].Sealed = 30, protocoltest.FirstBranch(20, 30) }) // all hold it: from here on it counts
	say(4*time.Second, func() { r.Rank[0].Step, r.Rank[0].Sealed = 40, protocoltest.FirstBranch(30, 40) })
	say(3*time.Second, func() { r.Rank[0].Copied = protocol.Copied{Mark: mark(30, 1)} })
	revision := say(2*time.Second, func() { r.Manifested = mark(30, 1) })
	if revision == 0 || len(gaps) > 0 {
		t.Fatalf("revision %d is to be stored, told are %v", revision, gaps)
	}
	store(500*time.Millisecond, revision)
	store(time.Minute, revision)
	if want := []time.Duration{9500 * time.Millisecond}; !slices.Equal(gaps, want) || s.Record.Durable.Step != 30 {
		t.Errorf("gaps are %v, want %v; durable is %+v", gaps, want, s.Record.Durable)
	}
	s.recordDurable(mark(35, 1), now) // of another coordinator: nobody knows since when it was sealed
	s.save()
	store(time.Second, s.revision)
	if len(gaps) != 1 {
		t.Errorf("gaps are %v", gaps)
	}
}
