package elastic

import (
	"fmt"
	"time"
)

const (
	// AgentUnreachable is the cause of a Termination where nobody hears a pod's agent while everything must halt.
	AgentUnreachable = "AgentUnreachable"
	// unreachableTime is how long a pod that runs may keep its gang from halting without its agent being heard.
	unreachableTime = 2 * time.Minute
	// partitionTime is the same where several are silent and these are more than half of the gang's. It outlasts what makes a
	// coordinator hear badly for a while; beyond it, what these pods hold is worth less than a gang that stands still.
	partitionTime = 10 * time.Minute
	// lookupEvery is how often it is asked which pods hold the slots that are not heard; after lookupStale without an answer
	// nothing is known of what they did meanwhile.
	lookupEvery = 10 * time.Second
	lookupStale = 3 * lookupEvery
	// haltQuietly is how long halting may take before people are told who is awaited.
	haltQuietly = 3 * time.Second
)

// unreachable is what is known of a slot that nobody hears while everything is being halted.
type unreachable struct {
	// since is from when it counts, of this holder; zero: the slot is heard, or has halted.
	since time.Time
	// known: the holder was told, at answered for the last time.
	known    bool
	answered time.Time
	// holder is the pod that the API server has in the slot, runs whether its container was started.
	holder Pod
	runs   bool
}

// trackUnreachable records slots that must halt and whose agents are unreachable, and looks up who holds them, all at
// once. Where several agents are unreachable, and these are more than half, the network may be at fault rather than the
// agents; those that were given up for it still count.
func (s *State) trackUnreachable(now time.Time) {
	h := s.run.halting
	h.unreachable = 0
	for _, d := range s.Record.PendingReplacements {
		if d.Cause == AgentUnreachable {
			h.unreachable++
		}
	}
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		if m.Halted(s.Record.Generation) || s.notAwaited(Slot(i), now) || m.Known() && m.Attached() {
			h.silent[i] = unreachable{}
			continue
		}
		h.unreachable++
		if q := &h.silent[i]; q.since.IsZero() {
			q.since = now
		}
	}
	partitioned := h.unreachable > 1 && 2*h.unreachable > s.members.Len()
	if h.partitionSuspected && !partitioned {
		h.reachableSince = now
	}
	h.partitionSuspected = partitioned
	due := []Slot{}
	for i := range s.members.Len() {
		if q := &h.silent[i]; !q.since.IsZero() && (q.known || now.Sub(q.since) >= haltQuietly) {
			due = append(due, Slot(i))
		}
	}
	if len(due) > 0 && now.Sub(s.lookedUpAt) >= lookupEvery {
		s.lookedUpAt = now
		s.emit(LookupHolders{due})
	}
}

// timeout is how long a pod that runs and is not heard since then may keep its gang from halting; 0: not any longer.
// When most are heard again each has unreachableTime anew, within partitionTime.
func (s *State) timeout(since, now time.Time) time.Duration {
	long, most := now.Sub(since), partitionTime
	if !s.run.halting.partitionSuspected {
		most = unreachableTime + max(0, s.run.halting.reachableSince.Sub(since))
	}
	return max(0, min(most, partitionTime)-long)
}

// holderKnown takes over the API server's answer, and gives up a pod that runs and was unreachable for too long. Such a
// pod counts as dead: nothing that it says or copies counts any more.
func (s *State) holderKnown(e SlotHolder, now time.Time) {
	if int(e.Slot) < 0 || int(e.Slot) >= s.members.Len() {
		return
	}
	m := s.members.At(e.Slot)
	if s.Record.Phase != Halting || s.run.halting.silent[e.Slot].since.IsZero() || m.Known() && m.Attached() {
		return
	}
	if e.Succeeded { // while no coordinator was there to learn it from its agent
		s.members.Leave(e.Slot)
		s.save()
		s.emit(Broadcast{})
		return
	}
	if e.Pod.UID != "" && m.Pod().UID != "" && s.TakesOver(e.Pod, m.Pod()) { // what ran there is gone
		s.members.HandOver(e.Slot, e.Pod)
		s.run.halting.forget(e.Slot)
		s.emit(Broadcast{})
	}
	q := &s.run.halting.silent[e.Slot]
	if q.holder.UID != e.Pod.UID || q.runs != e.Runs || now.Sub(q.answered) > lookupStale {
		q.since = now // only what the API server was seen to say all the time counts
	}
	q.known, q.answered, q.holder, q.runs = true, now, e.Pod, e.Runs
	if !q.runs || s.timeout(q.since, now) > 0 || s.terminationOf(e.Pod.UID) != nil || s.stage(e.Pod.UID) == replaceReleased {
		return
	}
	d := Termination{Slot: e.Slot, Pod: e.Pod.UID, Name: e.Pod.Name, Node: e.Pod.Node, Cause: AgentUnreachable, At: now, Deadline: now, Dead: true,
		Message: fmt.Sprintf("its agent was unreachable for %s while generation %d was halting", now.Sub(q.since).Truncate(time.Minute), s.Record.Generation)}
	s.giveUpPod(d, now)
	s.save()
	s.emit(Broadcast{})
}

// awaitedWhileHalting returns, for people, which pod keeps the gang from halting; "" at first.
func (s *State) awaitedWhileHalting(now time.Time) string {
	h := s.run.halting
	if now.Sub(h.detected) < haltQuietly {
		return ""
	}
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		q := &h.silent[i]
		switch {
		case m.Halted(s.Record.Generation) || s.notAwaited(Slot(i), now):
		case q.since.IsZero():
			why := fmt.Sprintf("waits for pod %s of slot %d to end what it runs of generation %d", m.Pod().Name, i, s.Record.Generation)
			if k := h.stuck[i]; k.heard >= stuckTime/4 && s.terminationOf(k.pod) == nil {
				why += fmt.Sprintf("; if it does not within %s, the pod is replaced", s.mayHaltFor(Slot(i), h.mostStuck()).Round(time.Second))
			}
			return why
		case q.known && q.holder.UID == "":
			return fmt.Sprintf("waits for a pod in slot %d: there is none", i)
		case q.known && !q.runs:
			return fmt.Sprintf("waits for pod %s of slot %d, which does not run", q.holder.Name, i)
		case h.partitionSuspected:
			return fmt.Sprintf("%s: %d of %d agents are unreachable, the first one in slot %d; as this is more than half of them, check the network between them and the coordinator; pods that stay unreachable for %s are replaced",
				AgentUnreachable, h.unreachable, s.members.Len(), i, partitionTime)
		case q.known:
			return fmt.Sprintf("%s: the agent of pod %s in slot %d is unreachable; if it stays so for %s, the pod is replaced", AgentUnreachable, q.holder.Name, i, unreachableTime)
		default:
			return fmt.Sprintf("%s: the agent of slot %d is unreachable", AgentUnreachable, i)
		}
	}
	return ""
}
