package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/drain"
	"holdfast.dev/holdfast/elastic/generation"
)

// stepRunning watches a started generation for its failure, its end, and terminating pods.
func (s *State) stepRunning(now time.Time) {
	s.requestOrphans()
	if s.generation.Branching() {
		s.haltForBranch(now)
		return
	}
	if s.haltsForCheck() {
		s.haltForCheck(now)
		return
	}
	if s.generation.TakeMissed() {
		s.emit(Broadcast{})
	}
	failed, suspect := s.generation.Failure()
	pending, ordered := s.generation.Pressing(), false
	switch {
	case failed:
		if pending != nil {
			s.drain.Drop() // the copies so far count
			suspect = s.generation.Blame(suspect, pending)
		}
	case pending != nil:
		s.drained(s.drain.Advance(now))
		failed, suspect, ordered = s.drain.Over(), pending, true
	}
	if pending == nil && s.drain.Drop() {
		s.emit(Broadcast{})
	}
	switch {
	case failed:
		s.becomeHalting(generation.Suspect{Cause: suspect, Ordered: ordered}, now)
	case pending == nil && !s.generation.Finished() && s.grow(now):
		s.becomeGrowing(now)
	case s.generation.Finished():
		s.becomeFinal(Verdict{Reason: ReasonFinished, At: now}, Finished)
	case !s.drain.Begun():
		s.preserve(now)
	}
	if s.Record.Phase == Running {
		s.watch(now)
	}
}

// drained carries out the outcome of a drain.
func (s *State) drained(o drain.Outcome) {
	if n := o.Note; n != nil {
		reason := NoticeDrained
		if n.Warning {
			reason = NoticeNotDrained
		}
		s.emit(EmitEvent{Notice{Warning: n.Warning, Reason: reason, Message: n.Message}})
	}
	if o.Save {
		s.save()
	}
	if o.Directives {
		s.emit(Broadcast{})
	}
}
