package preemption

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/gang/preemption"
)

// These functions decide which units may be preempted at all. Package gang/preemption selects among them.

// below returns whether a unit's priority is lower.
func below(priority int32) func(*preemption.Unit) bool {
	return func(u *preemption.Unit) bool { return u.Priority < priority }
}

// overrunLimit is how long a unit may exceed its declared end: units do not end to the second.
const overrunLimit = time.Minute

// orOverdue also allows units that are overdue in reserved room: the reservation relied on their declared end, and a wrong one must not
// block the gang for ever. It does not allow units of higher priority: they would preempt the gang in turn.
func orOverdue(may func(*preemption.Unit) bool, priority int32, reserved []string, now time.Time) func(*preemption.Unit) bool {
	return func(u *preemption.Unit) bool {
		if may(u) {
			return true
		}
		overdue := u.Priority <= priority && !u.End.IsZero() && now.Sub(u.End) >= overrunLimit &&
			slices.ContainsFunc(u.Pods, func(pod preemption.Pod) bool { return slices.Contains(reserved, pod.Node) })
		if overdue {
			u.Name += " (beyond its declared run time)"
		}
		return overdue
	}
}
