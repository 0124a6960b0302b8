package elastic

import "time"

// How long a doomed pod's state is waited for. What is waited for is decided in drain.go, while the gang trains, and by
// salvageDoomed, while it is halted; a drain ends at the earliest deadline of all doomed pods.
//
//  1. Whoever dooms a pod may name its deadline. For a pod that somebody deletes it is BeforeKill; pods of a suspended Job
//     all have that of the first one. Where nobody names one it is doomTime.
//  2. A pod that was told to end, and by whom its deadline is not shorter, has what its grace leaves beside the share that its
//     agent keeps for ending processes (ckptagent, shutdownMargin).
//  3. Of that time a step is to be chosen within a half (lateShare); for a sixth of it ranks may be stuck (stuckShare).
//  4. When everything halts, a doomed pod has haltTime in any case; then it is left behind. Agents that are not connected
//     are given haltTime as well.
//
// While no coordinator is there the pod's own agent decides (ckptagent, leaveAlone and drainAlone).
const (
	doomTime = 30 * time.Second
	haltTime = 10 * time.Second
	// lateShare and stuckShare are shares of a drain's time.
	lateShare  = 2
	stuckShare = 6
	// endingShare is what share of its grace an agent keeps for ending processes: a fifth.
	endingShare = 5
	// killMargin and killShare: a pod's state is no longer waited for that long before it is killed, a quarter of its grace at most.
	killMargin = 3 * time.Second
	killShare  = 4
)

// BeforeKill is until when the state of a pod may be waited for that is killed once its grace is over.
func BeforeKill(kill time.Time, grace time.Duration) time.Time {
	return kill.Add(-min(killMargin, grace/killShare))
}

// leaving notes when a pod was first told to end. It is no doom: whether the pod is deleted, or has ended what
// it was made for, the API server alone knows.
func (s *State) leaving(slot Slot, now time.Time) {
	if m := &s.slots[slot]; m.report.Leaving && m.leavingAt.IsZero() {
		m.leavingAt = now
	}
}

// out says whether the pod of a slot is not waited for when everything halts: it is fenced, or it is doomed
// and has had its time.
func (s *State) out(slot Slot, now time.Time) bool {
	d := s.doom(slot)
	if d == nil {
		return false
	}
	return s.Fenced(d.Pod) || now.After(s.deadline(*d)) && now.Sub(s.run.halting.detected) > haltTime
}

// deadline is until when a doomed pod's state may be waited for. A pod that is being shut down keeps some of
// its grace for stopping.
func (s *State) deadline(d Doom) time.Time {
	m := &s.slots[d.Slot]
	if m.pod.UID != d.Pod || m.leavingAt.IsZero() {
		return d.Deadline
	}
	grace := m.report.Grace
	if grace == 0 {
		grace = doomTime
	}
	if at := m.leavingAt.Add(grace - grace/endingShare); at.Before(d.Deadline) {
		return at
	}
	return d.Deadline
}

// drainUntil is the earliest deadline of all dooms.
func (s *State) drainUntil() time.Time {
	until := time.Time{}
	for _, d := range s.pendingDooms() {
		if at := s.deadline(d); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return until
}

// drainTime is how long the drain may take in all.
func (s *State) drainTime() time.Duration { return s.drainUntil().Sub(s.run.drain.since) }
