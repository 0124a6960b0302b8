package elastic

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

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
	for i := range s.slots {
		if !s.halted(&s.slots[i]) && !s.notAwaited(Slot(i), now) {
			return false
		}
	}
	return true
}

// halted: every process of the newest generation on this pod is gone and its inventory is final.
func (s *State) halted(m *member) bool {
	return m.known && m.report.State == protocol.StateHalted && m.report.Generation >= s.Record.Generation
}
