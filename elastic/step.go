package elastic

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// Step applies one event and returns what must be done, in order.
func Step(s *State, e Event, now time.Time) []Effect {
	s.effects, s.ranked, s.now = nil, nil, now
	if s.beganAt.IsZero() {
		s.beganAt = now
	}
	if _, report := e.(Reported); !report {
		s.replan()
	}
	switch e := e.(type) {
	case Reported:
		s.reported(e, now)
	case Detached:
		m := &s.slots[e.Slot]
		if m.known && m.pod.UID == e.Pod && m.attached {
			m.attached = false
			s.refresh(now)
			s.emit(Broadcast{}) // what all were to do together may be off
		}
	case Stored:
		s.stored = max(s.stored, min(e.Generation, s.Record.Generation))
		s.emit(Broadcast{})
		s.storedRevision = max(s.storedRevision, min(e.Revision, s.revision))
		s.tellGap(now)
	case Ended:
		s.ended = true
		s.emit(Broadcast{})
	case Over:
		if !s.over {
			s.over = true
			s.emit(Broadcast{})
		}
	case ReplacementsPending:
		s.setPending(e.Pods, now)
	case Suspended:
		s.suspend(e.Pods, now)
	case Retain:
		s.retain(e.Retention)
	case Released:
		s.release(e, now)
	case SlotHolder:
		s.holderKnown(e, now)
	case GoBack:
		s.goBackTo(e.To)
	case Tick:
	}
	s.advance(now)
	s.wait(now)
	s.persistLateCount(now)
	return s.effects
}

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// save wants the record as it is now stored at once.
func (s *State) save() {
	s.revision++
	s.emit(Persist{s.revision, s.snapshot()})
}

// reported takes a report over, unless it does not count.
func (s *State) reported(e Reported, now time.Time) {
	if int(e.Slot) < 0 || int(e.Slot) >= len(s.slots) || e.Report.Generation > protocol.MaxGeneration || !s.admit(&e) {
		return
	}
	m := &s.slots[e.Slot]
	before, connected := m.report, m.known && m.attached
	if connected && repeats(&e.Report, before) {
		m.report.Sequence = e.Report.Sequence
		return // a word that it lives: time alone has passed
	}
	if !connected || before.Generation != e.Report.Generation || before.State != e.Report.State || before.Terminating != e.Report.Terminating ||
		s.hasLauncher(&before) != s.hasLauncher(&e.Report) {
		s.emit(Broadcast{})
	}
	s.noteContainer(&e)
	s.resumed(e.Pod, now)
	s.ranked = nil
	s.replan()
	if more := m.countSaves(&e.Report, now); more != (protocol.Saves{}) {
		s.emit(Saved{more})
	}
	m.known, m.attached, m.pod, m.report = true, true, e.Pod, e.Report
	s.adoptLaunch(&e.Report)
	if r := &e.Report; r.Generation > s.Record.Generation && !s.Final() {
		// The store lost a record: numbers that agents have seen are never used again. What drained pods left was for a generation
		// that has begun since.
		s.Record.Generation, s.Record.RestoreStep, s.Record.Copies = r.Generation, StepUnknown, nil
		s.becomeRunning(run{}) // until an agent says otherwise
		s.save()
	}
	s.learnBranch(&e.Report)
	if e.Report.Generation == s.Record.Generation && ran(e.Report.State) {
		m.ranIn = s.Record.Generation
	}
	m.noteFailed(e.Report.FetchFailed)
	s.keepExits(e.Slot)
	s.containerEnded(e.Slot, now)
	s.succeeded(e.Slot, now)
	s.noteTerminating(e.Slot, now)
	s.track(now)
	if !connected || !sameToPeople(&before, &e.Report) {
		s.refresh(now)
	}
}

// admit reports whether a report counts, and gives the slot to a pod that takes it over. A pod whose reports do not
// count still gets its directive.
func (s *State) admit(e *Reported) bool {
	m := &s.slots[e.Slot]
	switch holder := m.known && m.pod.UID == e.Pod.UID; {
	case s.Fenced(e.Pod.UID), s.superseded(e.Pod.UID), m.known && !holder && !s.TakesOver(e.Pod, m.pod):
		s.emit(Broadcast{})
		return false
	case holder:
		return !before(&e.Report, &m.report)
	case m.known:
		s.handOver(e.Slot, Pod{})
	}
	return true
}

// noteContainer takes note of what a report says of its container beside the one before: that another one has begun.
func (s *State) noteContainer(e *Reported) {
	m, r := &s.slots[e.Slot], &e.Report
	if !m.known {
		if f := s.run.forming; f != nil {
			f.containers[e.Slot] = s.containersAtFirst(r)
		}
		return
	}
	// An agent in a new container is idle until its launcher comes, which may be before it is heard.
	if another := m.report.Containers > 0 && r.Containers > m.report.Containers; ran(m.report.State) && (another || r.State == protocol.StateIdle) {
		m.restartedIn = s.Record.Generation
	}
}

// replan: what comes from storage must be thought over.
func (s *State) replan() {
	if f := s.run.forming; f != nil {
		f.planned = false
	}
}

// sameToPeople says whether two reports differ in nothing that refresh looks at.
func sameToPeople(a, b *protocol.Report) bool {
	ready := func(r *protocol.Report) (n int) {
		for i := range r.Rank {
			if r.Rank[i].StandbyReady {
				n++
			}
		}
		return n
	}
	return slices.Equal(a.Notes, b.Notes) && ready(a) == ready(b) && a.Unprotected == b.Unprotected && a.WholeCommand == b.WholeCommand && (a.Ranks > 0) == (b.Ranks > 0) &&
		a.LeftForLauncher == b.LeftForLauncher && a.Terminating == b.Terminating
}

func ran(a protocol.AgentState) bool {
	return a == protocol.StateRunning || a == protocol.StateFailed || a == protocol.StateFinished
}

// before says whether the agent that sent known had sent this report before it.
func before(r, known *protocol.Report) bool {
	return cmp.Or(cmp.Compare(r.Incarnation, known.Incarnation), cmp.Compare(r.Sequence, known.Sequence)) < 0
}

// repeats says whether a report says nothing else than the known one.
func repeats(r *protocol.Report, known protocol.Report) bool {
	known.Sequence = r.Sequence
	return reflect.DeepEqual(known, *r)
}

// keepExits remembers how ranks of the newest generation ended. A pod that has not been seen to run it
// tells of an older one, which is accounted for; where an earlier coordinator handed it out, the time of
// the exit says which one it was.
func (s *State) keepExits(slot Slot) {
	r := &s.slots[slot].report
	if r.Generation != s.Record.Generation || !s.ranNewest(&s.slots[slot]) && s.run.layout != nil {
		return
	}
	base := s.baseRank(slot)
	for _, k := range r.Rank {
		if k.Exit == nil || !s.ranNewest(&s.slots[slot]) && !k.Exit.At.After(s.accounted()) {
			continue
		}
		s.run.keepExit(exitOf{slot, k.Local}, cause.Exit{Rank: base + k.Local, Slot: int(slot), Exit: *k.Exit})
	}
}

// accounted is the time up to which exits belong to what the newest generation repaired.
func (s *State) accounted() time.Time {
	rec := s.lastRecovery()
	switch {
	case rec == nil:
		return time.Time{}
	case rec.Stop < 0:
		return rec.DetectedAt.Add(haltTime)
	}
	return rec.DetectedAt.Add(max(0, rec.Drain) + max(0, rec.Decide) + rec.Stop)
}

// baseRank is the rank of a slot's first local rank; pods of one gang ask for the same number of ranks
// where an earlier coordinator laid the generation out and not all slots are known.
func (s *State) baseRank(slot Slot) int {
	if s.run.layout != nil {
		return s.run.layout.base[slot]
	}
	return s.rank().base[slot]
}

// ranked is how ranks would be numbered by what pods have told, where no layout says it.
type ranked struct {
	base  []int
	world int
}

// rank counts once per event: it is asked for each slot.
func (s *State) rank() *ranked {
	if s.ranked != nil {
		return s.ranked
	}
	r := &ranked{base: make([]int, len(s.slots))}
	for i := range s.slots {
		r.base[i] = r.world
		r.world += s.ranks(Slot(i))
	}
	s.ranked = r
	return r
}

// advance does what the levels ask for, until nothing changes. Of a Job that is over people are owed the verdict, and nothing else.
func (s *State) advance(now time.Time) {
	for range 4 {
		before := s.Record.Phase
		s.stepLaunch()
		s.noteLeft()
		if !s.Final() {
			s.trackMixed(now)
			if c := s.refusal(now); c != nil {
				s.refuse(c, now)
			}
		}
		switch {
		case s.Final():
			s.stepFinal()
		case s.over, s.stored < s.Record.Generation:
		default:
			s.stepPhase(now)
		}
		if s.Record.Phase == before {
			return
		}
		s.emit(Broadcast{})
	}
}

// stepPhase does what the phase asks for. Only a phase's own step leads to another one, by one of the becomes in run.go.
func (s *State) stepPhase(now time.Time) {
	s.confirm(now)
	switch s.Record.Phase {
	case Forming:
		s.stepForming(now)
	case Running:
		s.stepRunning(now)
	case Halting:
		s.stepHalting(now)
	case Finished, GivenUp:
	}
}

func (s *State) all(is func(*member) bool) bool {
	for i := range s.slots {
		if !is(&s.slots[i]) {
			return false
		}
	}
	return true
}

// Snapshot is what is to be stored of the record as it is now; it shares nothing with the state.
func (s *State) Snapshot() Record { return s.snapshot() }

func (s *State) snapshot() Record {
	r := s.Record
	r.Recoveries = slices.Clone(r.Recoveries)
	r.Progress.Attached = slices.Clone(r.Progress.Attached)
	r.Progress.Notes, r.Progress.Unprotected = slices.Clone(r.Progress.Notes), slices.Clone(r.Progress.Unprotected)
	r.Kept, r.Pinned = slices.Clone(r.Kept), slices.Clone(r.Pinned)
	r.PendingReplacements, r.Suspended, r.Copies, r.Moved = slices.Clone(r.PendingReplacements), slices.Clone(r.Suspended), slices.Clone(r.Copies), slices.Clone(r.Moved)
	r.Branches, r.Launch.Kept, r.Left = slices.Clone(r.Branches), slices.Clone(r.Launch.Kept), slices.Clone(r.Left)
	r.shorten()
	return r
}
