package elastic

import "time"

// stepHalting waits until nothing of the newest generation runs, then judges its failure.
func (s *State) stepHalting(now time.Time) {
	s.requestOrphans()
	s.trackUnreachable(now)
	s.watchStuck(now)
	if !s.allHalted(now) {
		return
	}
	if h := s.run.halting; h.haltedAt.IsZero() {
		h.haltedAt = now
	}
	if s.mayBeTerminating(now) {
		return
	}
	s.copyAfterHalt(now)
	if s.copiedAfterHalt() {
		s.judge(now)
	}
}

// allHalted reports whether every pod has halted, except those that are not awaited.
func (s *State) allHalted(now time.Time) bool {
	for i := range s.members.Len() {
		if !s.members.At(Slot(i)).Halted(s.Record.Generation) && !s.notAwaited(Slot(i), now) {
			return false
		}
	}
	return true
}
