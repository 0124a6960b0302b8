package replacements

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// A suspended Job. Its pods terminate, and none replaces them for now: they are listed separately from those that are replaced, unless a
// replacement was committed before. Their state is copied like that of replaced pods (All). After that nothing is requested from the store:
// suspending a Job deletes its pods. No notes are written about the pods, because the user requested all of it.

// Suspend sets the level. A given-up pod stays given up.
func (rs *Replacements) Suspend(pods []Termination, now time.Time) (notes []Note, changed bool) {
	pending, suspended := []Termination{}, []Termination{}
	level, before := listed(pods), listed(rs.suspended)
	for _, d := range rs.pending {
		if d.GivenUp() || rs.stage(d.Pod) >= committed || rs.irrevocable(d) && level[d.Pod] == nil {
			pending = append(pending, d)
		}
	}
	for _, d := range pods {
		if old := rs.Of(d.Pod); !rs.mayTerminate(d) || old != nil && old.GivenUp() {
			continue
		}
		d.Cause, d.Message = JobSuspended, cause.Tail(d.Message, keptMessage)
		suspended = append(suspended, suspendedAgain(d, before[d.Pod], now))
	}
	stays := listed(pending, pods)
	notes = rs.withdrawn(func(d Termination) bool { return stays[d.Pod] != nil })
	return notes, rs.recordLists(pending, suspended)
}

// suspendedAgain sets the times of a suspended pod that was listed as old; nil: it was not. Its deadline is known, and received again, once
// it is being deleted.
func suspendedAgain(d Termination, old *Termination, now time.Time) Termination {
	before := Termination{At: d.At, Deadline: now.Add(terminationTime)}
	if old != nil {
		before = *old
	}
	if d.At = before.At; d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = before.Deadline
	}
	return d
}

// Suspended reports whether the pod of a slot terminates because its Job is suspended.
func (rs *Replacements) Suspended(slot members.Slot) bool {
	return rs.inSlot(rs.suspended, slot) != nil
}

// AllSuspended reports whether no pod has to be replaced.
func (rs *Replacements) AllSuspended() bool { return len(rs.ToReplace()) == 0 }
