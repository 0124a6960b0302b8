package elastic

import (
	"cmp"
	"time"
)

// wait records what the gang waits for, with the same text for agents, users and the Gang (walk.go).
func (s *State) wait(now time.Time) {
	if s.over {
		return
	}
	waits := ""
	switch s.Record.Phase {
	case Forming:
		if waits = cmp.Or(s.noRoom(), s.waitsFor()); waits == "" {
			waits = cmp.Or(s.fetchReason(), s.checkWaits())
		}
	case Halting:
		waits = s.run.halting.watch.Waits(now)
	case Running, Finished, GivenUp:
	}
	if p := &s.Record.Progress; waits != p.Waits && s.walks.takeText(s.Record.Phase, now) {
		p.Waits = waits
		s.emit(PersistLater{})
		s.emit(Broadcast{})
	}
}
