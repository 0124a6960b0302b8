package elastic

import (
	"fmt"
	"time"
)

// HaltTimeout is the cause of a Termination where an agent is heard, and what its pod runs does not end, while everything must halt: a rank
// that the kernel cannot end, or an agent that can carry nothing out.
const HaltTimeout = "HaltTimeout"

// stuckTime is how long such a pod may keep its gang from halting. Where several do, and they are more than half of the gang's, what
// they wait for is likely one and the same, such as a file system, and may come back: they have partitionTime, as those that are not
// heard. Once they are not more than half any longer, it may just have come back: each that is left has stuckTime from then, within
// partitionTime.
const stuckTime = 2 * time.Minute

// stuckEvery is how often it is looked which slots these are: there are many reports while a large gang halts. Of the time between two
// looks stuckGap counts at most: in a longer one the coordinator itself stood still, and heard nobody.
const (
	stuckEvery = time.Second
	stuckGap   = 2 * stuckEvery
)

// stuck is what is known of a slot that is heard, or was, and has not halted.
type stuck struct {
	// pod holds the slot; heard is for how long it was heard in all that it has not halted, at when it was heard last. Time in which it
	// is not heard counts as silence (unreachable.go).
	pod   string
	heard time.Duration
	at    time.Time
	// among is what heard was when more than half of the gang were last seen not to halt; 0: they never were.
	among time.Duration
}

// hear counts on.
func (k *stuck) hear(pod string, now time.Time) {
	switch {
	case k.pod != pod:
		*k = stuck{pod: pod}
	case !k.at.IsZero():
		k.heard += min(now.Sub(k.at), stuckGap)
	}
	k.at = now
}

// watchStuck takes note of slots that are heard and do not halt, and gives up those that had their time: they count as dead, so that
// nothing that they say or copy counts any more.
func (s *State) watchStuck(now time.Time) {
	h := s.run.halting
	if now.Sub(h.stuckAt) < stuckEvery {
		return
	}
	h.stuckAt = now
	for i := range s.members.Len() {
		m, k := s.members.At(Slot(i)), &h.stuck[i]
		switch {
		case m.Halted(s.Record.Generation), s.notAwaited(Slot(i), now):
			*k = stuck{}
		case m.Known() && m.Attached():
			k.hear(m.Pod().UID, now)
		default:
			k.at = time.Time{}
		}
	}
	gaveUp, most := false, h.mostStuck()
	if most {
		for i := range h.stuck {
			h.stuck[i].among = h.stuck[i].heard // of silent ones too: they have as long once they are heard
		}
	}
	for i := range s.members.Len() {
		if k := h.stuck[i]; k.at.IsZero() || k.heard < s.mayHaltFor(Slot(i), most) || s.terminationOf(k.pod) != nil {
			continue
		}
		m := s.members.At(Slot(i))
		s.giveUpPod(Termination{Slot: Slot(i), Pod: m.Pod().UID, Name: m.Pod().Name, Node: m.Pod().Node, Cause: HaltTimeout, At: now, Deadline: now, Dead: true,
			Message: fmt.Sprintf("what it runs of generation %d did not end within %s", s.Record.Generation, h.stuck[i].heard.Truncate(time.Second))}, now)
		gaveUp = true
	}
	if gaveUp {
		s.save()
		s.emit(Broadcast{})
	}
}

// mostStuck: several slots are heard and do not halt, and they are more than half.
func (h *halting) mostStuck() bool {
	n := 0
	for _, k := range h.stuck {
		if !k.at.IsZero() {
			n++
		}
	}
	return n > 1 && 2*n > len(h.stuck)
}

// mayHaltFor is how long a slot may take to halt in all; mostStuck: more than half do not halt now. What a terminating pod runs may handle SIGTERM
// for all of its grace, and what the others run beside it for as long.
func (s *State) mayHaltFor(slot Slot, mostStuck bool) time.Duration {
	m, most := s.members.At(slot), partitionTime
	if !mostStuck {
		most = min(most, s.run.halting.stuck[slot].among+stuckTime)
	}
	if m.Report().Terminating {
		most = max(most, m.Report().Grace+haltTime)
	}
	if within := s.run.halting.within; within > 0 {
		most = max(most, within+haltTime)
	}
	return most
}

// ownVerdict: this package itself decided that the pod must go, and nobody tells of it again.
func (d Termination) ownVerdict() bool { return d.givenUp() || d.Cause == HardwareSuspected }

// givenUp: this package itself has given the pod up as dead, because nobody hears it or it does not halt.
func (d Termination) givenUp() bool { return d.Cause == AgentUnreachable || d.Cause == HaltTimeout }
