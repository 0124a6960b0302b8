package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/generation"
)

// stepRunning goes on with a generation that was handed out, and looks for its failure, its end, and pods that must go.
func (s *State) stepRunning(now time.Time) {
	s.requestOrphans()
	if s.generation.Branching() {
		s.haltForBranch(now)
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
			s.run.drain = nil // what is done by now counts
			suspect = s.generation.Blame(suspect, pending)
		}
	case pending != nil:
		s.advanceDrain(now)
		failed, suspect, ordered = s.run.drain.over, pending, true
	}
	if pending == nil && s.run.drain != nil {
		s.run.drain = nil
		s.emit(Broadcast{})
	}
	switch {
	case failed:
		s.becomeHalting(generation.Suspect{Cause: suspect, Ordered: ordered}, now)
	case s.generation.Finished():
		s.becomeFinal(Verdict{Reason: ReasonFinished, At: now}, Finished)
	case s.run.drain == nil:
		s.preserve(now)
	}
}
