package elastic

import "time"

// How long a pod to be replaced's state is waited for. What is waited for is decided in drain.go, while the gang trains, and by
// copyAfterHalt, while it is halted; a drain ends at the earliest deadline of all pods to be replaced.
//
//  1. Whoever has a pod replaced may name its deadline. For a pod that somebody deletes it is BeforeKill; pods of a suspended Job
//     all have that of the first one. Where nobody names one it is terminationTime.
//  2. A pod that was told to end, and by whom its deadline is not shorter, has what its grace leaves beside the share that its
//     agent keeps for ending processes (protocol.ShutdownMargin).
//  3. Of that time a step is to be chosen within a half (lateShare); for a sixth of it ranks may be stuck (stuckShare).
//  4. When everything halts, a pod to be replaced has haltTime in any case; then it is left behind. Agents that are not connected
//     are given haltTime as well.
//
// While no coordinator is there the pod's own agent decides (ckptagent, stopTimeout and copyTimeout).
const (
	terminationTime = 30 * time.Second
	haltTime        = 10 * time.Second
	// lateShare and stuckShare are shares of a drain's time.
	lateShare  = 2
	stuckShare = 6
	// killMargin and killShare: a pod's state is no longer waited for that long before it is killed, a quarter of its grace at most.
	killMargin = 3 * time.Second
	killShare  = 4
)

// BeforeKill returns how long the state of a pod may be waited for that is killed at the end of its grace.
func BeforeKill(kill time.Time, grace time.Duration) time.Time {
	return kill.Add(-min(killMargin, grace/killShare))
}

// notAwaited reports whether the halt does not wait for the pod of a slot: the pod is fenced, or is to be replaced and
// its deadline has passed.
func (s *State) notAwaited(slot Slot, now time.Time) bool {
	if s.members.HasLeft(slot, s.launch()) {
		return true
	}
	d := s.terminationFor(slot)
	if d == nil {
		return false
	}
	return s.Fenced(d.Pod) || now.After(s.deadline(*d)) && now.Sub(s.run.halting.detected) > haltTime
}

// deadline returns how long the state of a pod that is to be replaced may be waited for. A terminating pod keeps part
// of its grace for ending its processes.
func (s *State) deadline(d Termination) time.Time {
	m := s.members.At(d.Slot)
	if at, terminates := m.GraceEnds(); terminates && m.Is(d.Pod) && at.Before(d.Deadline) {
		return at
	}
	return d.Deadline
}

// drainUntil is the earliest deadline of all terminations.
func (s *State) drainUntil() time.Time {
	until := time.Time{}
	for _, d := range s.uncommitted() {
		if at := s.deadline(d); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return until
}

// haltWithin is how long ranks may take to end by themselves where pods are terminating: all that the one with the longest grace has left. A
// script saves its state in a handler of SIGTERM, which all ranks may have to do together.
func (s *State) haltWithin(now time.Time) time.Duration {
	var within time.Duration
	for _, d := range s.uncommitted() {
		if !d.Dead {
			within = max(within, s.deadline(d).Sub(now))
		}
	}
	return within.Truncate(time.Second)
}

// drainTime is how long the drain may take in all.
func (s *State) drainTime() time.Duration { return s.drainUntil().Sub(s.run.drain.since) }
