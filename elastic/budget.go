package elastic

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// judge finds the cause of the failure that ended the newest generation, and decides whether another
// one is worth it.
//
//   - A port conflict, and a launcher that comes late, cost a generation and are no failure, unless they come again and again.
//   - A failure of the script (an exception, an exit code, a crash) that is seen for the second time with
//     no progress between (none that is sure) is a bug in the script. That a rank says it lost another one is none: what
//     became of that one is not known, and will be the next time.
//   - A pod that had to leave its node costs a generation and is no failure; Replacements counts it.
//   - A failure to restore says nothing about the script without our state: the step is given up, not the gang (unrestorable.go).
//   - What comes from outside (kill, lost pod) says nothing about the script; it ends a gang only after
//     many restarts without progress.
//   - Nor does what hardware may be to blame for; before it ends a gang, the pod first at fault moves (suspect.go).
//
// What counts as progress is decided by package account. Where people say how many restarts there may be (--max-restarts,
// holdfast.dev/max-restarts), that many failures are followed by a restart, alike or not, with progress or without, and the next one ends
// the gang.
func (s *State) judge(now time.Time) {
	c := s.generation.Cause(s.run.halting.suspect)
	if s.members.All(func(m *members.Member) bool { return m.Halted(s.generation.Number) && m.Report().Ranks > 0 }) {
		s.account.NoteLeftWith(s.generation.InMemory().Step, now)
	}
	s.account.Credit(s.generation.Cost(), s.run.halting.detected)
	unrestorable := c.Code == cause.RestoreFailed
	free := s.account.CountExcuse(c) || c.Code != cause.LauncherStarted && c.Displaced() || unrestorable
	givesUp := unrestorable && s.account.FailsToRestore(s.generation.RestoreStep, c)
	if ended := s.generation.Ended(c); ended != nil {
		s.becomeFinal(Verdict{Reason: ReasonMemberEnded, ExitCode: cmp.Or(c.ExitCode, 1), Cause: ended, At: now}, GivenUp)
		return
	}
	if !free {
		reason := Reason("")
		left, limited := s.restartsLeft()
		switch {
		case limited && left <= 0:
			reason = ReasonMaxRestarts
		case s.shouldMove(c):
			s.move(c, now)
		case limited:
		case !c.External() && !c.LostPeer && s.account.SeenBefore(c):
			reason = ReasonSameFailureTwice
		case left <= 0:
			reason = ReasonNoProgress
		}
		if reason == ReasonNoProgress && c.Restoring && s.generation.CanGiveUpStep() {
			reason, givesUp = "", true
		}
		if reason != "" {
			s.becomeFinal(Verdict{Reason: reason, ExitCode: cmp.Or(c.ExitCode, 1), Cause: &c, At: now}, GivenUp)
			return
		}
		s.account.Spend()
	}
	s.members.Rejoin() // of a suspended Job's pods
	s.open(c)
	if givesUp {
		s.giveUpStep(&c)
	}
	s.becomeForming()
	switch {
	case givesUp:
		s.saveAndTell() // before that no generation begins
	case c.Code == cause.JobSuspended:
		s.save() // the pods go; nobody else will know why
	}
}

// open begins the account of a recovery; begin and track complete it.
func (s *State) open(c cause.Cause) {
	h := s.run.halting
	o := account.Opening{
		Cause: c, EndedAt: h.detected, DetectedAt: h.detected, DrainedSince: s.drain.Since(), Waited: s.members.Waited(s.generation.Number),
	}
	if first := s.members.FirstDetection(s.generation.Number); !first.IsZero() {
		o.DetectedAt = first
	}
	if closed := s.account.Open(o, s.generation.Cost()); closed != nil {
		s.emit(Settled{*closed})
	}
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeRecovering, Message: account.Recovering(s.generation.Number, c)}})
}

// restartsLeft is how many restarts there may be yet; limited: people say how many.
func (s *State) restartsLeft() (left int, limited bool) {
	most, limited := s.members.MaxRestarts()
	return s.account.RestartsLeft(most, limited), limited
}
