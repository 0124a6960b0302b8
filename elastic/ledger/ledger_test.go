package ledger

import (
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

var start = time.Unix(1_700_000_000, 0)

func mark(step, generation int64) protocol.Mark {
	return protocol.Mark{Step: step, Generation: generation}
}

func stepAt(step, generation int64) StoredStep {
	return StoredStep{Mark: mark(step, generation), At: time.Unix(1_700_000_000+step, 0)}
}

// retained returns the ledger of a gang with recorded steps, newest first.
func retained(steps ...StoredStep) *Ledger {
	l := New(time.Minute, Recorded{})
	l.steps = steps
	return l
}

// pod returns a running gang of one pod with one rank, which has copied step 40.
func pod() *members.Members {
	ms := members.New(1, members.Recorded{Seen: members.Seen{Ranks: 1}}, true)
	ms.Take(0, members.Pod{UID: "uid"}, &protocol.Report{
		Ranks: 1, Generation: 1, State: protocol.StateRunning, Storage: true,
		Rank: []protocol.Rank{{Sealed: protocoltest.FirstBranch(40), Copied: protocol.Copied{Mark: mark(40, 1)}}},
	}, 1, start)
	return ms
}

// next completes the copy of a step to storage.
func (l *Ledger) next() {
	l.TakeNext(pod(), func() Candidate { return Candidate{Mark: mark(40, 1)} }, start, start)
}

// TestAwaits: once a copy is due and all ranks hold no step that is newer than the newest in storage, the next one is awaited until it is
// copied. Each change changes directives.
func TestAwaits(t *testing.T) {
	l := retained(StoredStep{Mark: mark(20, 1), At: start})
	for i, c := range []struct {
		newest  int64
		after   time.Duration
		changes bool
		awaits  bool
		copying int64
	}{
		{20, time.Second, false, false, 0},
		{20, time.Minute, true, true, 0},
		{20, 2 * time.Minute, false, true, 0},
		{30, 3 * time.Minute, true, false, 30},
		{40, 4 * time.Minute, true, false, 40}, // the pod holds no step 30
	} {
		changes := l.TakeNext(pod(), func() Candidate { return Candidate{Mark: mark(c.newest, 1)} }, start, start.Add(c.after))
		if copying, _ := l.Copying(); changes != c.changes || l.Awaits() != c.awaits || copying.Step != c.copying {
			t.Errorf("%d: changes %v, awaits %v, copies step %d; want %+v", i, changes, l.Awaits(), copying.Step, c)
		}
	}
	l.BeginGeneration()
	if l.Awaits() {
		t.Error("a copy is awaited in a generation that has just begun")
	}
}

// recordedAt returns steps that became durable at these seconds, newest first.
func recordedAt(seconds ...int) []StoredStep {
	var out []StoredStep
	for _, s := range seconds {
		out = append(out, StoredStep{Mark: mark(int64(s), 1), At: time.Unix(int64(s), 0)})
	}
	return out
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

// TestKeptForLong: a job runs for a long time at an uneven pace. The number of retained steps is bounded, a removed step never returns, and
// the newest steps are there. Back to the bound there is at least one step per interval.
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
			if newest := min(len(before), keptMost, max(keptLeast, r.Keep)); len(recorded) > most ||
				!slices.Equal(recorded[:newest], before[:newest]) {
				t.Fatalf("seed %d, step %d: %d stay, %+v", seed, step, len(recorded), recorded)
			}
		}
		if span := recorded[0].At.Sub(recorded[len(recorded)-1].At); span < keptEveryMost*every {
			t.Errorf("seed %d: steps of %s stay, want %d times %s", seed, span, keptEveryMost, every)
		}
	}
}

// TestWhatARemovalSpares: steps are removed below the older of the two newest steps, even if steps far below are pinned. A requested pin
// that the record lacks is spared, because a re-created Gang has lost its record.
func TestWhatARemovalSpares(t *testing.T) {
	l := retained(stepAt(30, 1), stepAt(20, 1))
	l.TakeRetention(Retention{Pins: []protocol.Mark{mark(10, 1), mark(3, 1)}})
	m := l.manifest(mark(40, 1), pod())
	if want := []protocol.Mark{mark(30, 1), mark(20, 1), mark(10, 1), mark(3, 1)}; m.Below != mark(20, 1) || !slices.Equal(m.Recorded, want) {
		t.Errorf("below %+v all but %+v goes, want %+v", m.Below, m.Recorded, want)
	}
	l.steps = nil
	if m := l.manifest(mark(40, 1), pod()); len(m.Recorded) > 0 || m.Below.Step > 0 {
		t.Errorf("no step is recorded, and below %+v all but %+v goes", m.Below, m.Recorded)
	}
}

// TestRemovalsGoByTheStoredRecord: a coordinator that cannot store its record any more, because another one leads, removes no step that the
// stored record lists. Users may pin such a step.
func TestRemovalsGoByTheStoredRecord(t *testing.T) {
	l := retained(stepAt(20, 1), stepAt(10, 1))
	l.record(mark(30, 1), time.Time{}, start)
	l.NoteRevision(1)
	l.copying = &copying{mark: mark(40, 1)}
	if l.next(); l.copying.manifest.Step > 0 {
		t.Errorf("%+v is ordered while the record of step 30 is on its way", l.copying.manifest)
	}
	l.NoteStored(1, start)
	if l.next(); l.copying.manifest.Mark != mark(40, 1) || l.copying.manifest.Below != mark(20, 1) {
		t.Errorf("ordered is %+v", l.copying.manifest)
	}
}

// TestUnpinnedStepsGoOnceThatIsStored: an unpinned step is removed only after the record without the pin is stored. Until then the next
// coordinator, and a user who pins the step again, rely on the stored record.
func TestUnpinnedStepsGoOnceThatIsStored(t *testing.T) {
	l := retained(stepAt(20, 1), stepAt(10, 1))
	l.pinned = []StoredStep{stepAt(3, 1)}
	l.copying = &copying{mark: mark(40, 1)}
	if !l.TakeRetention(Retention{Version: 1}) {
		t.Error("what is unpinned is not stored")
	}
	l.NoteRevision(1)
	if l.next(); l.copying.manifest.Step > 0 {
		t.Errorf("%+v is ordered while the store still has the pin", l.copying.manifest)
	}
	l.NoteStored(1, start)
	if l.next(); l.copying.manifest.Step == 0 || slices.Contains(l.copying.manifest.Recorded, mark(3, 1)) {
		t.Errorf("ordered is %+v", l.copying.manifest)
	}
}

// TestGoingBackPastTheNewest: after newer steps were given up, a retained step is the newest, and a removal spares it.
func TestGoingBackPastTheNewest(t *testing.T) {
	l := retained(recordedAt(40, 30, 20, 10)...)
	l.Forget(protocol.Point{Step: 25}, nil, Generation{Number: 1})
	if r := l.Record(); *r.Durable != recordedAt(20)[0] || *r.Older != recordedAt(10)[0] || len(r.Kept) != 0 {
		t.Errorf("recorded are %+v", r)
	}
	l = retained(recordedAt(40, 30, 20, 10)...)
	if m := l.manifest(mark(50, 1), pod()); m.Below != mark(30, 1) || len(m.Recorded) != 4 {
		t.Errorf("below %+v all but %+v goes", m.Below, m.Recorded)
	}
	var many []int
	for step := 100; step > 0; step-- {
		many = append(many, step)
	}
	if w := retained(recordedAt(many...)...).Stored(Generation{Number: 1}).Whole; len(w) != restore.MostWhole || w[0] != mark(100, 1) {
		t.Errorf("%d steps may be gone back to: %+v", len(w), w)
	}
}

// TestForgetAnotherBranch: after a lost record training may continue from a step of an older branch. Then the stored steps of the newer
// branch are given up, whatever their numbers.
func TestForgetAnotherBranch(t *testing.T) {
	newer := StoredStep{Mark: protocol.Mark{Step: 45, Generation: 5, Branch: 1}, At: start}
	l := retained(newer, stepAt(40, 3))
	l.copies = []restore.Part{{Mark: protocol.Mark{Step: 46, Generation: 5, Branch: 1}}}
	l.Forget(protocol.Point{Step: 50}, nil, Generation{Number: 5, Branch: 1})
	if r := l.Record(); *r.Durable != stepAt(40, 3) || r.Older != nil || len(r.Copies) > 0 {
		t.Errorf("the record names %+v", r)
	}
}

// TestCopiesMakeAStepWhole: the copies of drained pods make a step durable once every rank's part is there. Of each rank the newest part
// counts.
func TestCopiesMakeAStepWhole(t *testing.T) {
	l, part := retained(), func(m protocol.Mark) []protocol.Rank {
		return []protocol.Rank{{Copied: protocol.Copied{Mark: m}}, {Local: 1, Copied: protocol.Copied{Mark: m}}}
	}
	l.KeepCopy(mark(7, 1), 0, part(mark(7, 1)))
	l.KeepCopy(mark(8, 1), 0, part(mark(8, 1)))
	if l.TakeComplete(mark(8, 1), 4, time.Time{}, start) || !l.HasPart(protocol.Point{Step: 8}, Generation{Number: 1}, 0, 2, 4) {
		t.Error("half of a step is whole, or not there")
	}
	if l.KeepCopy(mark(8, 1), 2, part(mark(8, 1))); !l.TakeComplete(mark(8, 1), 4, time.Time{}, start) {
		t.Error("all parts are there, and the step is not whole")
	}
	if d, ok := l.Newest(); !ok || d.Mark != mark(8, 1) || len(l.copies) > 0 || l.DurableStored().Step != 0 {
		t.Errorf("durable is %+v, and known as stored before it is", d)
	}
}

// TestGap: the gap is the time from when all ranks held a step until the record that lists the step is stored. Each step yields one gap.
func TestGap(t *testing.T) {
	l := retained()
	l.record(mark(30, 1), start, start.Add(time.Second))
	l.NoteRevision(1)
	if _, known := l.NoteStored(0, start.Add(2*time.Second)); known {
		t.Error("it is durable before the record is stored")
	}
	if gap, known := l.NoteStored(1, start.Add(3*time.Second)); !known || gap != 3*time.Second {
		t.Errorf("gap %s", gap)
	}
	if _, known := l.NoteStored(1, start.Add(4*time.Second)); known {
		t.Error("it is told twice")
	}
}
