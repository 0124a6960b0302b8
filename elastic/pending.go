package elastic

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// setPending takes the level over.
func (s *State) setPending(pods []Termination, now time.Time) {
	if s.Final() || s.over {
		return
	}
	next := []Termination{}
	for _, d := range s.Record.PendingReplacements {
		if s.irrevocable(d) && !slices.ContainsFunc(pods, func(o Termination) bool { return o.Pod == d.Pod }) {
			next = append(next, d)
		}
	}
	for _, d := range pods {
		if !s.mayTerminate(d) {
			continue
		}
		d.Message = cause.Tail(d.Message, keptTerminationMessage)
		switch old := s.pendingOf(d.Pod); {
		case old == nil:
			s.announce(&d, now)
		case old.givenUp():
			d = *old // what was given up stays so, whatever its node turns out to be
		default:
			d.At, d.Deadline = old.At, old.Deadline // it has the time that it was given first
		}
		next = append(next, d)
	}
	s.announceWithdrawn(func(d Termination) bool {
		return slices.ContainsFunc(next, func(o Termination) bool { return o.Pod == d.Pod })
	})
	s.setTerminations(next, nil, now)
}

// mayTerminate reports whether the listed pod was not replaced yet.
func (s *State) mayTerminate(d Termination) bool {
	return int(d.Slot) >= 0 && int(d.Slot) < s.members.Len() && s.stage(d.Pod) != replaceReleased && (!s.members.Superseded(d.Pod) || s.terminationOf(d.Pod) != nil)
}

// setTerminations takes over which pods are to be replaced, and which terminate because their Job is suspended.
func (s *State) setTerminations(pending, suspended []Termination, now time.Time) {
	bySlot(pending)
	bySlot(suspended)
	if slices.Equal(pending, s.Record.PendingReplacements) && slices.Equal(suspended, s.Record.Suspended) {
		return
	}
	s.Record.PendingReplacements, s.Record.Suspended = pending, suspended
	for _, d := range s.terminations() {
		if d.Dead {
			s.members.Detach(d.Slot, d.Pod)
		}
	}
	s.refresh()
	s.save()
	s.emit(Broadcast{})
}

// giveUpPod has a pod replaced that this package itself gives up.
func (s *State) giveUpPod(d Termination, now time.Time) {
	s.announce(&d, now)
	s.Record.PendingReplacements = append(slices.Clone(s.Record.PendingReplacements), d)
	bySlot(s.Record.PendingReplacements)
}

func bySlot(terminations []Termination) {
	slices.SortFunc(terminations, func(a, b Termination) int { return int(a.Slot) - int(b.Slot) })
}

// announce gives a new termination its times and tells people.
func (s *State) announce(d *Termination, now time.Time) {
	if d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = now.Add(terminationTime) // the rules stand in deadline.go
	}
	s.announceTermination(*d, true, "is to be replaced: "+d.why())
}

// announceTermination tells people of a termination.
func (s *State) announceTermination(d Termination, warning bool, what string) {
	s.emit(EmitEvent{Notice{Warning: warning, Reason: NoticeReplacementPending, Message: fmt.Sprintf("%s of slot %d %s", d.where(), d.Slot, what)}})
}

func (d Termination) where() string {
	if d.Node == "" {
		return "pod " + d.Name
	}
	return fmt.Sprintf("pod %s on node %s", d.Name, d.Node)
}

func (d Termination) why() string {
	if d.Message == "" {
		return d.Cause
	}
	return d.Cause + ": " + d.Message
}

// announceWithdrawn emits an event for each termination that was withdrawn.
func (s *State) announceWithdrawn(leaves func(Termination) bool) {
	for _, d := range s.Record.PendingReplacements {
		if !leaves(d) {
			s.announceTermination(d, false, fmt.Sprintf("is no longer to be replaced: %s is over", d.Cause))
		}
	}
}

// irrevocable reports whether a termination cannot be withdrawn any more: it was carried out, the pod is being deleted,
// or this package itself gave the pod up.
func (s *State) irrevocable(d Termination) bool {
	m := s.members.At(d.Slot)
	leaves := m.Known() && m.Pod().UID == d.Pod && m.Report().Terminating
	return s.stage(d.Pod) >= replaceCommitted || d.Cause == PodDeleted || d.ownVerdict() || leaves
}

// terminations returns all pods that must terminate, by slot: those that are replaced, and those whose Job is
// suspended.
func (s *State) terminations() []Termination { return s.Record.Terminations() }

// Terminations are the pods that must go, each once.
func (r *Record) Terminations() []Termination {
	if len(r.Suspended) == 0 {
		return r.PendingReplacements
	}
	out := slices.Clone(r.PendingReplacements)
	for _, d := range r.Suspended {
		if !slices.ContainsFunc(r.PendingReplacements, func(o Termination) bool { return o.Pod == d.Pod }) {
			out = append(out, d)
		}
	}
	bySlot(out)
	return out
}

func (s *State) pendingOf(pod string) *Termination { return ofPod(s.Record.PendingReplacements, pod) }

// terminationOf is why a pod must go; nil: it need not.
func (s *State) terminationOf(pod string) *Termination {
	if len(s.Record.PendingReplacements)+len(s.Record.Suspended) == 0 {
		return nil // as nearly always, and it is asked for each slot
	}
	return cmp.Or(s.pendingOf(pod), ofPod(s.Record.Suspended, pod))
}

func ofPod(terminations []Termination, pod string) *Termination {
	for i := range terminations {
		if terminations[i].Pod == pod {
			return &terminations[i]
		}
	}
	return nil
}

// terminationFor returns why the pod that holds a slot must terminate; nil where it need not.
func (s *State) terminationFor(slot Slot) *Termination {
	if len(s.Record.PendingReplacements)+len(s.Record.Suspended) == 0 {
		return nil
	}
	return cmp.Or(s.inSlot(s.Record.PendingReplacements, slot), s.inSlot(s.Record.Suspended, slot))
}

// inSlot is that of the pod that holds a slot.
func (s *State) inSlot(list []Termination, slot Slot) *Termination {
	for i := range list {
		if d := &list[i]; d.Slot == slot && !s.orphan(*d) {
			return d
		}
	}
	return nil
}

// terminationCause returns the failure that the terminations amount to; nil where there are none.
func (s *State) terminationCause() *cause.Cause {
	for _, d := range s.terminations() {
		if s.orphan(d) && s.lost(d.Slot) == nil || s.stage(d.Pod) >= replaceCommitted {
			continue
		}
		if s.members.HasLeft(d.Slot, s.launch()) && d.Cause != JobSuspended {
			continue // none of its ranks runs, and the gang could not run again without them
		}
		return s.lossOf(d)
	}
	return nil
}

// lossOf returns the cause of a generation's end that a termination amounts to.
func (s *State) lossOf(d Termination) *cause.Cause {
	c := &cause.Cause{Code: cause.PodReplaced, Slot: int(d.Slot), Rank: s.baseRank(d.Slot), Message: fmt.Sprintf("%s: %s", d.where(), d.why())}
	switch {
	case d.Cause == JobSuspended:
		c.Code, c.Message = cause.JobSuspended, "the Job is suspended"
	case d.givenUp():
		c.Code = cause.PodLost // nobody says that it had to leave its place: what falls silent or hangs again and again is counted
	}
	return c
}

// orphan reports whether another pod holds the slot of a pod that is to be replaced.
func (s *State) orphan(d Termination) bool {
	return s.members.Orphan(d.Slot, d.Pod)
}

// Ticks says whether Tick is wanted every so often.
func (s *State) Ticks() bool {
	return (len(s.Record.PendingReplacements) > 0 || len(s.Record.Suspended) > 0 || s.Record.Phase == Halting) && !s.Final() && !s.over
}
