package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// excusedInARow is how many generations in a row port conflicts and late launchers may cost before they count as failures.
const excusedInARow = 5

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
// What counts as progress stands in progress.go. Where people say how many restarts there may be (--max-restarts, holdfast.dev/max-restarts),
// that many failures are followed by a restart, alike or not, with progress or without, and the next one ends the gang.
func (s *State) judge(now time.Time) {
	c := s.cause()
	r := &s.Record
	s.bestAtEnd(now)
	s.credit()
	free, givesUp := false, false
	if c.Code == cause.PortConflict || c.Code == cause.LauncherStarted {
		s.excused++
		free = s.excused <= excusedInARow
	} else {
		s.excused = 0
		restore := c.Code == cause.RestoreFailed
		free, givesUp = restore || c.Displaced(), restore && s.failedToRestore()
	}
	if ended := s.memberEnded(c); ended != nil {
		s.becomeFinal(Verdict{Reason: ReasonMemberEnded, ExitCode: exitCode(c), Cause: ended, At: now}, GivenUp)
		return
	}
	if !free {
		reason := Reason("")
		_, limited := s.members.MaxRestarts()
		switch {
		case limited && s.restartsLeft() <= 0:
			reason = ReasonMaxRestarts
		case s.shouldMove(c):
			s.move(c, now)
		case limited:
		case !c.External() && !c.LostPeer && s.seenBefore(c):
			reason = ReasonSameFailureTwice
		case s.restartsLeft() <= 0:
			reason = ReasonNoProgress
		}
		if reason == ReasonNoProgress && c.Restoring && s.canGiveUpStep() {
			reason, givesUp = "", true
		}
		if reason != "" {
			s.becomeFinal(Verdict{Reason: reason, ExitCode: exitCode(c), Cause: &c, At: now}, GivenUp)
			return
		}
		r.spend()
	}
	s.members.Rejoin() // of a suspended Job's pods
	s.open(c)
	if givesUp {
		s.giveUpStep(&c)
	}
	s.becomeForming()
	switch {
	case givesUp:
		s.saveBranch()
	case c.Code == cause.JobSuspended:
		s.save() // the pods go; nobody else will know why
	}
}

// seenBefore says whether the same failure was repaired since the last progress that is sure.
func (s *State) seenBefore(c cause.Cause) bool {
	left := s.Record.sinceSure()
	for i := len(s.Record.Recoveries) - 1; i >= 0 && left > 0; i-- {
		old := s.Record.Recoveries[i].Cause
		if old.Uncounted() {
			continue
		}
		short := c
		short.Message = cause.Tail(c.Message, keptMessage)
		if cause.Same(old, short) {
			return true
		}
		left--
	}
	return false
}

// open begins the account of a recovery; begin and track complete it.
func (s *State) open(c cause.Cause) {
	s.keepPace()
	s.settle(s.run.halting.detected, false)
	c.Message = cause.Tail(c.Message, keptMessage)
	r := &s.Record
	reached, known := s.reached()
	if c.Code == cause.WentBack {
		reached = min(reached, r.Progress.Step) // what is given up is not done again
	}
	at := s.run.halting.detected
	if first := s.members.FirstDetection(s.Record.Generation); !first.IsZero() {
		at = first
	}
	drained := NotReached
	if s.run.drain != nil && s.run.drain.barrier.Step() > 0 {
		at, drained = s.run.drain.since, s.run.halting.detected.Sub(s.run.drain.since)
	}
	for i := range r.Recoveries {
		r.Recoveries[i].shorten(keptReplaced)
	}
	r.Recoveries = append(r.Recoveries, Recovery{
		Generation: r.Generation + 1, Cause: c, DetectedAt: at,
		Decide: NotReached, Stop: NotReached, Start: NotReached, Restore: NotReached, FirstStep: NotReached,
		Drain: drained, Replace: NotReached, Fetch: NotReached,
		EndedAfter: s.run.counted.Most, Reached: reached, ReachedKnown: known, Waited: s.members.Waited(s.Record.Generation),
	})
	if n := len(r.Recoveries) - keptRecoveries; n > 0 {
		r.Recoveries = slices.Delete(r.Recoveries, 0, n)
	}
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeRecovering, Message: recovering(r.Generation, c)}})
}
