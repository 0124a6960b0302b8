package elastic

import "time"

// wait keeps what the gang waits for: agents, people and the Gang hear the same words.
func (s *State) wait(now time.Time) {
	if s.over {
		return
	}
	waits := ""
	switch s.Record.Phase {
	case Forming:
		if waits = s.waitsFor(); waits == "" {
			waits = s.fetchReason()
		}
	case Halting:
		waits = s.run.halting.watch.Waits(now)
	case Running, Finished, GivenUp:
	}
	if p := &s.Record.Progress; waits != p.Waits {
		p.Waits = waits
		s.emit(PersistLater{})
		s.emit(Broadcast{})
	}
}
