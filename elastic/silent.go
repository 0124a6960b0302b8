package elastic

import (
	"fmt"
	"time"
)

const (
	// AgentSilent is the cause of a Doom where nobody hears a pod's agent while everything must halt.
	AgentSilent = "AgentSilent"
	// silentTime is how long a pod that runs may keep its gang from halting without its agent being heard.
	silentTime = 2 * time.Minute
	// deafTime is the same where several are silent and these are more than half of the gang's. It outlasts what makes a
	// coordinator hear badly for a while; beyond it, what these pods hold is worth less than a gang that stands still.
	deafTime = 10 * time.Minute
	// seekEvery is how often it is asked which pods hold the slots that are not heard; after seekLost without an answer
	// nothing is known of what they did meanwhile.
	seekEvery = 10 * time.Second
	seekLost  = 3 * seekEvery
	// haltQuietly is how long halting may take before people are told who is awaited.
	haltQuietly = 3 * time.Second
)

// silence is what is known of a slot that nobody hears while everything is being halted.
type silence struct {
	// since is from when it counts, of this holder; zero: the slot is heard, or has halted.
	since time.Time
	// known: the holder was told, at answered for the last time.
	known    bool
	answered time.Time
	// holder is the pod that the API server has in the slot, runs whether its container was started.
	holder Pod
	runs   bool
}

// listen takes note of slots that must halt and are not heard, and asks who holds them, of all at once. Several silent
// agents that are more than the others say that the way to them may be at fault rather than they are; those that were
// given up for it are silent still.
func (s *State) listen(now time.Time) {
	h := s.run.halting
	h.quiet = 0
	for _, d := range s.Record.Doomed {
		if d.Cause == AgentSilent {
			h.quiet++
		}
	}
	for i := range s.slots {
		m := &s.slots[i]
		if s.halted(m) || s.out(Slot(i), now) || m.known && m.attached {
			h.silence[i] = silence{}
			continue
		}
		h.quiet++
		if q := &h.silence[i]; q.since.IsZero() {
			q.since = now
		}
	}
	deaf := h.quiet > 1 && 2*h.quiet > len(s.slots)
	if h.deaf && !deaf {
		h.hearsSince = now
	}
	h.deaf = deaf
	due := []Slot{}
	for i := range s.slots {
		if q := &h.silence[i]; !q.since.IsZero() && (q.known || now.Sub(q.since) >= haltQuietly) {
			due = append(due, Slot(i))
		}
	}
	if len(due) > 0 && now.Sub(s.soughtAt) >= seekEvery {
		s.soughtAt = now
		s.emit(Seek{due})
	}
}

// patience is how long a pod that runs and is not heard since then may keep its gang from halting; 0: not any longer.
// When most are heard again each has silentTime anew, within deafTime.
func (s *State) patience(since, now time.Time) time.Duration {
	long, most := now.Sub(since), deafTime
	if !s.run.halting.deaf {
		most = silentTime + max(0, s.run.halting.hearsSince.Sub(since))
	}
	return max(0, min(most, deafTime)-long)
}

// sought takes the API server's answer over, and gives a pod up that runs and was not heard for too long. It
// counts as dead: nothing that it says or copies counts any more.
func (s *State) sought(e Sought, now time.Time) {
	if int(e.Slot) < 0 || int(e.Slot) >= len(s.slots) {
		return
	}
	m := &s.slots[e.Slot]
	if s.Record.Phase != Halting || s.run.halting.silence[e.Slot].since.IsZero() || m.known && m.attached {
		return
	}
	if e.Pod.UID != "" && m.pod.UID != "" && s.TakesOver(e.Pod, m.pod) { // what ran there is gone
		s.passOn(e.Slot, e.Pod)
		s.emit(Direct{})
	}
	q := &s.run.halting.silence[e.Slot]
	if q.holder.UID != e.Pod.UID || q.runs != e.Runs || now.Sub(q.answered) > seekLost {
		q.since = now // only what the API server was seen to say all the time counts
	}
	q.known, q.answered, q.holder, q.runs = true, now, e.Pod, e.Runs
	if !q.runs || s.patience(q.since, now) > 0 || s.doomOfPod(e.Pod.UID) != nil || s.stage(e.Pod.UID) == replaceReleased {
		return
	}
	d := Doom{Slot: e.Slot, Pod: e.Pod.UID, Name: e.Pod.Name, Node: e.Pod.Node, Cause: AgentSilent, At: now, Deadline: now, Dead: true,
		Message: fmt.Sprintf("its agent was not heard for %s while generation %d was to halt", now.Sub(q.since).Truncate(time.Minute), s.Record.Generation)}
	s.give(d, now)
	s.save()
	s.emit(Direct{})
}

// haltWaits says, for people, who keeps the gang from halting; "" while that is not long.
func (s *State) haltWaits(now time.Time) string {
	h := s.run.halting
	if now.Sub(h.detected) < haltQuietly {
		return ""
	}
	for i := range s.slots {
		m := &s.slots[i]
		q := &h.silence[i]
		switch {
		case s.halted(m) || s.out(Slot(i), now):
		case q.since.IsZero():
			return fmt.Sprintf("waits for pod %s of slot %d to end what it runs of generation %d", m.pod.Name, i, s.Record.Generation)
		case q.known && q.holder.UID == "":
			return fmt.Sprintf("waits for a pod in slot %d: there is none", i)
		case q.known && !q.runs:
			return fmt.Sprintf("waits for pod %s of slot %d, which does not run", q.holder.Name, i)
		case h.deaf:
			return fmt.Sprintf("%s: %d of %d agents are not heard, the first one in slot %d; as this is more than half, look at what lies between them and the coordinator; pods that stay so for %s are replaced",
				AgentSilent, h.quiet, len(s.slots), i, deafTime)
		case q.known:
			return fmt.Sprintf("%s: the agent of pod %s in slot %d is not heard; if it stays so for %s, the pod is replaced", AgentSilent, q.holder.Name, i, silentTime)
		default:
			return fmt.Sprintf("%s: the agent of slot %d is not heard", AgentSilent, i)
		}
	}
	return ""
}
