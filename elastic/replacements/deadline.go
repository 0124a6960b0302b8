package replacements

import "time"

// How long the coordinator waits for the state of a pod to be replaced. Package drain decides what it waits for; a drain ends at the
// earliest deadline of all pods to be replaced.
//
//  1. The component that requests a replacement may set its deadline. For a pod that is being deleted it is BeforeKill; pods of a
//     suspended Job all have that of the first one. Without one it is terminationTime.
//  2. For a terminating pod with a later deadline, it is the pod's grace period without the share that its agent needs to end
//     processes (protocol.ShutdownMargin).
//  3. Within a half of that time (LateShare) a step must be chosen; ranks may be stuck for a sixth of it (StuckShare).
//  4. When all ranks halt, a pod to be replaced has at least HaltTime; then the gang no longer waits for it. Agents that are not connected
//     also have HaltTime.
//
// Without a coordinator the pod's own agent decides (ckptagent, stopTimeout and copyTimeout).
const (
	terminationTime = 30 * time.Second
	HaltTime        = 10 * time.Second
	// LateShare and StuckShare are shares of a drain's time.
	LateShare  = 2
	StuckShare = 6
	// killMargin and killShare: the wait for a pod's state ends that long before the pod is killed, at most a quarter of its grace period.
	killMargin = 3 * time.Second
	killShare  = 4
)

// BeforeKill returns until when the coordinator may wait for the state of a pod that is killed at the end of its grace period.
func BeforeKill(kill time.Time, grace time.Duration) time.Time {
	return kill.Add(-min(killMargin, grace/killShare))
}

// Move sets time and deadline of a termination that the gang itself decides on, by its word that the node may be at fault.
func Move(d Termination, now time.Time) Termination {
	d.At, d.Deadline = now, now.Add(terminationTime)
	return d
}

// Deadline returns until when the coordinator may wait for the state of a pod that must be replaced. A terminating pod needs part of its
// grace period to end its processes.
func (rs *Replacements) Deadline(d Termination) time.Time {
	m := rs.ms.At(d.Slot)
	if at, terminates := m.GraceEnds(); terminates && m.Is(d.Pod) && at.Before(d.Deadline) {
		return at
	}
	return d.Deadline
}

// DrainUntil returns the earliest deadline of all terminations.
func (rs *Replacements) DrainUntil() time.Time {
	until := time.Time{}
	for _, d := range rs.Uncommitted() {
		if at := rs.Deadline(d); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return until
}

// HaltWithin returns how long ranks may take to end after SIGTERM while pods are terminating: the longest remaining grace period. A script
// may save its state in a SIGTERM handler, which may require all ranks.
func (rs *Replacements) HaltWithin(now time.Time) time.Duration {
	var within time.Duration
	for _, d := range rs.Uncommitted() {
		if !d.Dead {
			within = max(within, rs.Deadline(d).Sub(now))
		}
	}
	return within.Truncate(time.Second)
}
