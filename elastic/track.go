package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

// track records what the ranks of the newest generation have sealed and finished.
func (s *State) track(now time.Time) {
	if s.generation.Number == 0 || s.Final() || s.generation.Branching() {
		return
	}
	if s.members.All(func(m *members.Member) bool { return m.Current(s.generation.Number) }) {
		if s.generation.NoteSealed(now) {
			s.emit(Broadcast{})
		}
	}
	if steps, ok := s.members.Steps(s.generation.Number); ok {
		s.account.TrackSteps(steps, s.generation.Cost(), s.drain.Begun() || s.run.growth.begun(), now)
		s.noteSigns(steps, now)
	}
	s.account.TrackResume(s.generation.Cost())
	if rec := s.account.TrackRecovery(s.members, s.generation.Cost(), now); rec != nil {
		s.emit(Settled{*rec})
		s.emit(EmitEvent{Notice{Reason: NoticeRecovered, Message: rec.Text()}})
	}
}
