package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/replacements"
)

// stepHalting waits until all processes of the newest generation are gone, then judges its failure.
func (s *State) stepHalting(now time.Time) {
	s.requestOrphans()
	h := s.run.halting
	if due := h.watch.TrackUnreachable(now); len(due) > 0 && now.Sub(s.lookedUpAt) >= replacements.LookupEvery {
		s.lookedUpAt = now
		s.emit(LookupHolders{due})
	}
	s.gaveUp(h.watch.TrackStuck(now))
	if !h.watch.AllHalted(now) {
		return
	}
	if h.haltedAt.IsZero() {
		h.haltedAt = now
	}
	s.drained(s.drain.AdvanceHalted(now))
	if s.drain.HaltedOver() && !(now.Sub(h.haltedAt) < replacements.HaltTime && s.generation.MayBeTerminating()) {
		s.judge(now)
	}
}
