package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// A suspended Job. Its pods go, and none comes in their place for now: they are Record.Suspended, beside those that are replaced,
// and never among them but where a replacement was committed before. What they hold is copied as that of replaced pods is (terminations).
// Then nothing is asked of the store: whoever suspends a Job has its pods deleted, and maySuspend lets them end. People are told of no
// pod, for they asked for all of it themselves.

// suspend takes the level over. What is given up stays so, whatever becomes of its Job.
func (s *State) suspend(pods []Termination, now time.Time) {
	if s.Final() || s.over {
		return
	}
	listed := func(d Termination) bool {
		return slices.ContainsFunc(pods, func(o Termination) bool { return o.Pod == d.Pod })
	}
	pending, suspended := []Termination{}, []Termination{}
	for _, d := range s.Record.PendingReplacements {
		if d.givenUp() || s.stage(d.Pod) >= replaceCommitted || s.irrevocable(d) && !listed(d) {
			pending = append(pending, d)
		}
	}
	for _, d := range pods {
		if old := s.terminationOf(d.Pod); !s.mayTerminate(d) || old != nil && old.givenUp() {
			continue
		}
		d.Cause, d.Message = JobSuspended, cause.Tail(d.Message, keptTerminationMessage)
		suspended = append(suspended, s.suspendedAgain(d, now))
	}
	s.announceWithdrawn(func(d Termination) bool { return listed(d) || slices.Contains(pending, d) })
	s.setTerminations(pending, suspended, now)
}

// suspendedAgain gives a suspended pod its times. How long it may be waited for is known once it is deleted, and told again then.
func (s *State) suspendedAgain(d Termination, now time.Time) Termination {
	before := Termination{At: d.At, Deadline: now.Add(terminationTime)}
	if i := slices.IndexFunc(s.Record.Suspended, func(o Termination) bool { return o.Pod == d.Pod }); i >= 0 {
		before = s.Record.Suspended[i]
	}
	if d.At = before.At; d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = before.Deadline
	}
	return d
}

// suspended reports whether the pod of a slot terminates because its Job is suspended.
func (s *State) suspended(slot Slot) bool {
	return s.inSlot(s.Record.Suspended, slot) != nil
}

// allSuspended: no pod has to be replaced.
func (s *State) allSuspended() bool { return len(s.toReplace()) == 0 }

// maySuspend reports whether a pod of a suspended Job has nothing left to do: everything is halted, what can be copied
// is copied, and that is stored.
func (s *State) maySuspend(slot Slot, pod string) bool {
	m := s.members.At(slot)
	return s.Record.Phase == Forming && s.suspended(slot) && m.Pod().UID == pod && m.Report().Terminating && m.Halted(s.Record.Generation) && s.run.postHaltCopy == (protocol.Mark{}) && !s.mayAttach(s.now) && s.storedRevision >= s.revision
}

// resumed begins the account of a suspension anew where the first pod after it comes: to be suspended costs no training.
func (s *State) resumed(p Pod, now time.Time) {
	if rec := s.openRecovery(); rec != nil && s.Record.Phase == Forming && rec.Cause.Code == cause.JobSuspended && p.Created.After(rec.DetectedAt) {
		rec.DetectedAt, rec.Drain = now, NotReached
	}
}
