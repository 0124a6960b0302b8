package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/members"
)

// at is the newest generation, as the account receives it.
func (s *State) at() account.Generation {
	return account.Generation{Number: s.Record.Generation, RestoreStep: s.Record.RestoreStep, CommonStep: s.run.commonStep}
}

// track follows what the ranks of the newest generation have sealed, finished and reached.
func (s *State) track(now time.Time) {
	if s.Record.Generation == 0 || s.Final() || s.branching() {
		return
	}
	if s.members.All(func(m *members.Member) bool { return m.Current(s.Record.Generation) }) {
		s.trackSealed(now)
	}
	if steps, ok := s.members.Steps(s.Record.Generation); ok {
		s.account.TrackSteps(steps, s.at(), s.run.drain != nil, now)
	}
	s.account.TrackResume(s.at())
	if rec := s.account.TrackRecovery(s.members, s.at(), now); rec != nil {
		s.emit(Settled{*rec})
		s.emit(EmitEvent{Notice{Reason: NoticeRecovered, Message: rec.Text()}})
	}
}

func (s *State) trackSealed(now time.Time) {
	common, reclaimBelow := s.members.CommonStep(), s.members.ReclaimBelow(s.run.commonStep)
	if common > s.run.commonStep || reclaimBelow > s.run.reclaimBelow {
		s.emit(Broadcast{})
	}
	s.run.commonStep, s.run.reclaimBelow = max(s.run.commonStep, common), max(s.run.reclaimBelow, reclaimBelow)
	s.account.NoteCommon(s.run.commonStep, now)
}
