package replacements

import "time"

// How long the state of a pod to be replaced is waited for. What is waited for is decided by package drain; a drain ends at the earliest
// deadline of all pods to be replaced.
//
//  1. The component that has a pod replaced may name its deadline. For a pod that is being deleted it is BeforeKill; pods of a
//     suspended Job all have that of the first one. Where none is named it is terminationTime.
//  2. A terminating pod whose deadline is not shorter has what its grace leaves beside the share that its agent keeps for ending
//     processes (protocol.ShutdownMargin).
//  3. Of that time a step is to be chosen within a half (LateShare); for a sixth of it ranks may be stuck (StuckShare).
//  4. When everything halts, a pod to be replaced has HaltTime in any case; then it is left behind. Agents that are not connected
//     are given HaltTime as well.
//
// While no coordinator is there the pod's own agent decides (ckptagent, stopTimeout and copyTimeout).
const (
	terminationTime = 30 * time.Second
	HaltTime        = 10 * time.Second
	// LateShare and StuckShare are shares of a drain's time.
	LateShare  = 2
	StuckShare = 6
	// killMargin and killShare: a pod's state is no longer waited for that long before it is killed, a quarter of its grace at most.
	killMargin = 3 * time.Second
	killShare  = 4
)

// BeforeKill returns until when the coordinator may wait for the state of a pod that is killed at the end of its grace.
func BeforeKill(kill time.Time, grace time.Duration) time.Time {
	return kill.Add(-min(killMargin, grace/killShare))
}

// Move is the termination of a pod that moves because hardware is suspected.
func Move(d Termination, now time.Time) Termination {
	d.Cause, d.At, d.Deadline = HardwareSuspected, now, now.Add(terminationTime)
	return d
}

// Deadline returns until when the coordinator may wait for the state of a pod that must be replaced. A terminating pod keeps part of
// its grace for ending its processes.
func (rs *Replacements) Deadline(d Termination) time.Time {
	m := rs.ms.At(d.Slot)
	if at, terminates := m.GraceEnds(); terminates && m.Is(d.Pod) && at.Before(d.Deadline) {
		return at
	}
	return d.Deadline
}

// DrainUntil is the earliest deadline of all terminations.
func (rs *Replacements) DrainUntil() time.Time {
	until := time.Time{}
	for _, d := range rs.Uncommitted() {
		if at := rs.Deadline(d); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return until
}

// HaltWithin is how long ranks may take to end by themselves while pods are terminating: the longest remaining grace. A script may
// save its state in a handler of SIGTERM, which all ranks may have to do together.
func (rs *Replacements) HaltWithin(now time.Time) time.Duration {
	var within time.Duration
	for _, d := range rs.Uncommitted() {
		if !d.Dead {
			within = max(within, rs.Deadline(d).Sub(now))
		}
	}
	return within.Truncate(time.Second)
}
