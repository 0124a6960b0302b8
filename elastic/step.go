package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// Step applies one event and returns the effects, in order.
func Step(s *State, e Event, now time.Time) []Effect {
	s.effects, s.now = nil, now
	s.drain.NoteStart(now)
	calm := false
	switch e := e.(type) {
	case Reported:
		calm = !s.reported(e, now)
	case Detached:
		calm = true
		s.detached(e)
	case Tick:
	default:
		s.run.forming.forget()
		s.take(e, now)
	}
	if !calm || !s.walkLater(now) {
		s.walk(now)
	}
	if s.account.TakeChange() {
		s.emit(PersistLater{})
	}
	return s.effects
}

// take applies an event that is no word of an agent.
func (s *State) take(e Event, now time.Time) {
	switch e := e.(type) {
	case Stored:
		s.stored = max(s.stored, min(e.Generation, s.generation.Number))
		s.emit(Broadcast{})
		s.storedRevision = max(s.storedRevision, min(e.Revision, s.revision))
		if gap, known := s.ledger.NoteStored(s.storedRevision, now); known {
			s.emit(MadeDurable{gap})
		}
	case Ended:
		s.ended = true
		s.emit(Broadcast{})
	case Over:
		if !s.over {
			s.over = true
			s.emit(Broadcast{})
		}
	case ReplacementsPending:
		if !s.Final() && !s.over {
			s.listed(s.replacements.SetPending(e.Pods, now))
		}
	case Suspended:
		if !s.Final() && !s.over {
			s.listed(s.replacements.Suspend(e.Pods, now))
		}
	case Limit:
		s.limit(e.Limits)
	case Placed:
		s.notePlaced(e.Pods, now)
	case Retain:
		if !s.over && !s.Final() && s.ledger.TakeRetention(e.Retention) { // the steps of an ended gang are never removed
			s.save()
		}
	case Supervise:
		s.supervise(e.Supervision, now)
	case NodesKnown:
		s.noteNodes(e)
	case Released:
		s.release(e)
	case SlotHolder:
		s.holderKnown(e, now)
	case GoBack:
		s.goBackTo(e.To)
	}
}

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// save emits Persist with the present record.
func (s *State) save() {
	s.revision++
	s.ledger.NoteRevision(s.revision)
	s.emit(Persist{s.revision, s.Snapshot()})
}

// detached handles the end of an agent's connection.
func (s *State) detached(e Detached) {
	if s.members.Detach(e.Slot, e.Pod) {
		s.run.forming.noteReport(e.Slot)
		s.walks.news, s.walks.seen = true, true
	}
}

// reported handles a report, if it counts; it reports whether it is the first sign of a failure.
func (s *State) reported(e Reported, now time.Time) (fails bool) {
	slot, r := e.Slot, &e.Report
	if !s.members.Has(slot) || r.Generation > protocol.MaxGeneration {
		return false
	}
	switch s.members.Admit(slot, e.Pod, r, s.replacements.Fenced) {
	case members.Refused, members.Stale:
		return false
	case members.Succeeds:
		s.run.halting.forget(slot)
		s.emit(Broadcast{}) // to the pod that held the slot
	case members.Admitted:
	}
	if s.members.At(slot).RecordRepeat(r) {
		return false // only time has passed
	}
	was, more := s.members.Take(slot, e.Pod, r, s.generation.Number, now)
	before := was.Report()
	if f := s.run.forming; f != nil && !was.Known() {
		f.noteFirst(slot, r, s.generation.Number)
	}
	if !was.Known() {
		s.noteStart(slot, now)
	}
	if s.Record.Phase == Forming {
		s.account.Reopen(s.generation.Number, e.Pod.Created, now)
	}
	s.run.halting.heard(slot)
	s.run.forming.replan()
	s.run.forming.noteReport(slot)
	if more != (protocol.Saves{}) {
		s.emit(Saved{more})
	}
	s.noteTrials(slot, &was)
	s.adopt(slot)
	s.members.NoteRan(slot, s.generation.Number, s.generation.RestoreStep)
	s.generation.KeepExits(slot)
	s.containerEnded(slot, now)
	s.succeeded(slot, now)
	w := &s.walks
	w.news, w.seen = true, w.seen || !was.Attached() || !members.SameToPeople(before, r)
	if s.WantsLooks(r) {
		w.looks = append(w.looks, slot)
	}
	return s.Record.Phase == Running && r.State == protocol.StateFailed
}

// adopt records what an agent knows and the store has lost: numbers that agents have seen are never reused.
func (s *State) adopt(slot Slot) {
	m := s.members.At(slot)
	if r := m.Report(); !s.Final() {
		s.generation.AdoptLaunch(r)
		if r.Generation > s.generation.Number {
			s.generation.Adopt(r.Generation)
			s.becomeRunning() // until an agent reports otherwise
			s.saveAndTell()
		}
	}
	if newest := m.NewestBranch(); newest > s.generation.NewestBranch() { // agents receive only branches that were stored
		s.generation.Branch = newest
		s.saveAndTell()
	}
}

// refresh updates what users see of the pods.
func (s *State) refresh() {
	news := s.members.Refresh(s.generation.Number, s.replacements.Fenced)
	switch {
	case news.Unprotected != "":
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeUnprotected, Message: news.Unprotected}})
	case news.Mended:
		s.emit(EmitEvent{Notice{Reason: NoticeUnprotected, Message: "is resolved: every pod runs only ranks under its agent"}})
	}
	if news.People {
		s.emit(PersistLater{})
	}
	if news.Orders {
		s.emit(Broadcast{})
	}
}

// maxTransitions bounds the phases that a gang passes in one event: halted, forming and running again, and a verdict.
const maxTransitions = 4

// advance acts on the state until the phase does not change, in `most` transitions. For a Job that is over it only carries out the verdict.
// advance panics if the phase does not settle: stopping halfway would leave agents with the orders of a past phase.
func (s *State) advance(most int, now time.Time) {
	for range most {
		before := s.Record.Phase
		s.stepLaunch()
		if (s.Record.Phase == Running || s.Record.Phase == Halting) && s.members.NoteLeft() {
			s.save() // another coordinator would wait for a pod that is over
		}
		if !s.Final() {
			if c := s.refusal(now); c != nil {
				s.becomeFinal(Verdict{Reason: ReasonRefused, ExitCode: c.ExitCode, Cause: c, At: now}, GivenUp)
			}
		}
		switch {
		case s.Final():
			s.stepFinal()
		case s.over, s.stored < s.generation.Number:
		default:
			s.stepPhase(now)
		}
		if s.Record.Phase == before {
			return
		}
		s.emit(Broadcast{})
	}
	panic(fmt.Sprintf("elastic: generation %d is %s, not settled after %d transitions", s.generation.Number, s.Record.Phase, most))
}

// stepPhase does the phase's work. Only a phase's own step changes the phase, by a become function in run.go.
func (s *State) stepPhase(now time.Time) {
	s.confirm(now)
	if s.storedRevision >= s.revision {
		s.request(s.replacements.RequestOut())
	}
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

// Snapshot returns the record to be stored; it shares nothing with the state.
func (s *State) Snapshot() Record {
	r := s.Record
	a := s.account.Record()
	r.Budget, r.Progress.Figures, r.BestStep = a.Budget, a.Figures, a.BestStep
	r.StartedAt, r.Recoveries, r.Moved = a.StartedAt, a.Recoveries, a.Moved
	r.Progress.LongestSilence = s.quiet.Longest()
	m := s.members.Record()
	r.Progress.Seen, r.Left, r.Out = m.Seen, m.Left, slices.Clone(s.generation.Out())
	g := s.generation.Recorded
	r.Generation, r.RestoreStep, r.Branch, r.RestoreBranch = g.Number, g.RestoreStep, g.Branch, g.RestoreBranch
	r.Worlds = g.Worlds
	r.Sizes = s.sizes.record()
	r.Launch = Launch{Number: m.Launch, After: g.After, Restarts: a.Before}
	r.PendingReplacements, r.Suspended = s.replacements.Record()
	r.Replacements = s.replacements.Count()
	l := s.ledger.Record()
	r.Durable, r.Older, r.Kept, r.Copies, r.Pinned, r.PinWish = l.Durable, l.Older, l.Kept, l.Copies, l.Pinned, l.PinWish
	r.Branches, r.Launch.Kept = l.Line, l.Launches
	r.PendingPods = len(r.Terminations())
	r.PendingReplacements, r.Suspended = replacements.Shorten(r.PendingReplacements, r.Suspended, account.Unreleased(r.Recoveries))
	return r
}
