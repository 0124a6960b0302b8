package elastic

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// judge finds the cause of the failure that ended the newest generation, and decides whether another generation follows.
//
//   - A port conflict, and a launcher that starts late, cost a generation and are no failure, unless they repeat.
//   - A failure of the script (an exception, an exit code, a crash) that repeats without certain progress in between is a bug in the
//     script. A crash that the script does not report in its own words may be a pod's fault: a node check decides (arbiter.go). A rank's report that it lost another one is none: the other's cause is unknown, and will be known the next time.
//   - A pod that had to leave its node costs a generation and is no failure; Replacements counts it.
//   - Nor is an exception before any step of a generation with fewer pods than all: that number of pods is struck (struck.go).
//   - A failure to restore is no evidence against the script: the step is given up, or the number of pods struck if they were not all, but
//     not the gang (unrestorable.go).
//   - A cause from outside (kill, lost pod) is none either; it ends a gang only after many restarts without progress.
//   - Nor is a failure that hardware may have caused; before it ends a gang, the pod first at fault is moved (suspect.go).
//   - Ranks that stood still are restarted only a few times without progress, which ends no gang, and spend no restart (hang.go).
//
// Package account decides what counts as progress. If users set a limit (--max-restarts, holdfast.dev/max-restarts), each of that many
// failures is followed by a restart, equal or not, with progress or without, and the next one ends the gang.
func (s *State) judge(now time.Time) {
	c := s.generation.Cause(s.run.halting.suspect)
	if s.lacking(c) {
		c.Suspect = cause.SuspectPod
	}
	if s.members.All(func(m *members.Member) bool { return m.Halted(s.generation.Number) && m.Report().Ranks > 0 }) {
		s.account.NoteLeftWith(s.generation.InMemory().Step, now)
	}
	s.account.Credit(s.generation.Cost(), cmp.Or(s.run.halting.stillSince, s.run.halting.detected))
	if ended := s.generation.Ended(c); ended != nil {
		s.becomeFinal(Verdict{Reason: ReasonMemberEnded, ExitCode: cmp.Or(c.ExitCode, 1), Cause: ended, At: now}, GivenUp)
		return
	}
	unrestorable, whole := c.Code == cause.RestoreFailed, len(s.generation.Out()) == 0
	struck, again := s.noteStruck(&c)
	free := s.account.CountExcuse(c) || c.Code != cause.LauncherStarted && c.Displaced() || unrestorable || c.Still() || struck
	givesUp := unrestorable && whole && s.account.FailsToRestore(s.generation.RestoreStep, c)
	arbitrates := false
	if !free {
		reason := s.endsBy(c, again, now)
		if arbitrates = reason == ReasonSameFailureTwice && s.arbitrates(c); arbitrates {
			reason = ""
		}
		if reason == ReasonNoProgress && c.Restoring && c.Suspect != cause.SuspectTransfer && s.generation.CanGiveUpStep() {
			if reason, givesUp, struck = "", whole, !whole; struck {
				s.strike(&c)
			}
		}
		if reason != "" {
			s.becomeFinal(Verdict{Reason: reason, ExitCode: cmp.Or(c.ExitCode, 1), Cause: &c, At: now}, GivenUp)
			return
		}
		if !arbitrates { // arbitrated spends it once the gang goes on
			s.account.Spend()
		}
	}
	if c.Still() {
		s.restartStill(c, now)
	}
	s.members.Rejoin() // re-created pods of a suspended Job
	s.open(c)
	if givesUp {
		s.giveUpStep(&c)
	}
	s.becomeForming()
	switch {
	case arbitrates:
		s.orderArbiter(now)
	case givesUp:
		s.saveAndTell() // no generation begins before it is stored
	case c.Code == cause.JobSuspended, struck:
		s.save() // the pods are being deleted, and the cause with them
	}
}

// endsBy returns why a failure that counts ends the gang, or moves the pod at fault; "": it does not end. again: the failure is known to be
// a repeated one.
func (s *State) endsBy(c cause.Cause, again bool, now time.Time) Reason {
	left, limited := s.restartsLeft()
	switch {
	case limited && left <= 0:
		return ReasonMaxRestarts
	case s.shouldMove(c):
		s.move(c, now)
	case limited:
	case !c.External() && !c.LostPeer && (again || s.account.SeenBefore(c)):
		return ReasonSameFailureTwice
	case left <= 0:
		return ReasonNoProgress
	}
	return ""
}

// open begins the account of a recovery; begin and track complete it.
func (s *State) open(c cause.Cause) {
	h := s.run.halting
	o := account.Opening{
		Cause:        c,
		EndedAt:      h.detected,
		DetectedAt:   h.detected,
		DrainedSince: s.drain.Since(),
		StillSince:   h.stillSince,
		Waited:       s.members.Waited(s.generation.Number),
	}
	if first := s.members.FirstDetection(s.generation.Number); !first.IsZero() {
		o.DetectedAt = first
	}
	if closed := s.account.Open(o, s.generation.Cost()); closed != nil {
		s.emit(Settled{*closed})
	}
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeRecovering, Message: account.Recovering(s.generation.Number, c)}})
}

// restartsLeft returns how many restarts remain; limited: a user set the limit.
func (s *State) restartsLeft() (left int, limited bool) {
	most, limited := s.members.MaxRestarts()
	return s.account.RestartsLeft(most, limited), limited
}
