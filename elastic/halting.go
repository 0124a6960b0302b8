package elastic

import "time"

// stepHalting waits until nothing of the newest generation runs any more, and has its end judged.
func (s *State) stepHalting(now time.Time) {
	s.requestOrphans()
	s.listen(now)
	if !s.allHalted(now) {
		return
	}
	if h := s.run.halting; h.haltedAt.IsZero() {
		h.haltedAt = now
	}
	if s.mayDepart(now) {
		return
	}
	s.salvageDoomed(now)
	if s.salvaged() {
		s.judge(now)
	}
}

// allHalted: so is every pod, but for those that are left behind.
func (s *State) allHalted(now time.Time) bool {
	for i := range s.slots {
		if !s.halted(&s.slots[i]) && !s.out(Slot(i), now) {
			return false
		}
	}
	return true
}

// halted: every process of the newest generation on this pod is gone and its inventory is final.
func (s *State) halted(m *member) bool {
	return m.known && m.report.State == AgentHalted && m.report.Generation >= s.Record.Generation
}
