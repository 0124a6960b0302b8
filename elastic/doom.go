package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// doomed takes the level over.
func (s *State) doomed(pods []Doom, now time.Time) {
	if s.Final() || s.over {
		return
	}
	next := []Doom{}
	for _, d := range s.Record.Doomed {
		if s.mustStay(d) && !slices.ContainsFunc(pods, func(o Doom) bool { return o.Pod == d.Pod }) {
			next = append(next, d)
		}
	}
	for _, d := range pods {
		if int(d.Slot) < 0 || int(d.Slot) >= len(s.slots) || s.stage(d.Pod) == replaceReleased || s.superseded(d.Pod) && s.doomOfPod(d.Pod) == nil {
			continue
		}
		d.Message = cause.Tail(d.Message, keptMessage)
		switch old := s.doomOfPod(d.Pod); {
		case old == nil || old.rests() != d.rests() && old.Cause != AgentSilent:
			s.announce(&d, now)
		case old.Cause == AgentSilent:
			d = *old // what was given up stays so, whatever its node turns out to be
		default:
			d.keeps(*old)
		}
		next = append(next, d)
	}
	bySlot(next)
	s.tellWithdrawn(next)
	if slices.Equal(next, s.Record.Doomed) {
		return
	}
	s.Record.Doomed = next
	for _, d := range next {
		if m := &s.slots[d.Slot]; d.Dead && m.pod.UID == d.Pod {
			m.attached = false
		}
	}
	s.refresh(now)
	s.save()
	s.emit(Direct{})
}

// give dooms a pod that this package itself gives up.
func (s *State) give(d Doom, now time.Time) {
	s.announce(&d, now)
	s.Record.Doomed = append(slices.Clone(s.Record.Doomed), d)
	bySlot(s.Record.Doomed)
}

func bySlot(dooms []Doom) {
	slices.SortFunc(dooms, func(a, b Doom) int { return int(a.Slot) - int(b.Slot) })
}

// keeps takes the times of a doom that is told again. How long pods of a suspended Job may be waited for is known once
// they are deleted; what has to leave its place has the time that it was given first.
func (d *Doom) keeps(old Doom) {
	d.At = old.At
	if !d.rests() || d.Deadline.IsZero() {
		d.Deadline = old.Deadline
	}
}

// announce gives a new doom its times and tells people.
func (s *State) announce(d *Doom, now time.Time) {
	if d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = now.Add(doomTime) // the rules stand in deadline.go
	}
	s.tellDoom(*d, true, "is to be replaced: "+d.why())
}

// tellDoom tells people of a doom. That a Job rests they asked for themselves, of all pods at once.
func (s *State) tellDoom(d Doom, warning bool, what string) {
	if !d.rests() {
		s.emit(Tell{Notice{Warning: warning, Reason: NoticeDoomed, Message: fmt.Sprintf("%s of slot %d %s", d.where(), d.Slot, what)}})
	}
}

func (d Doom) where() string {
	if d.Node == "" {
		return "pod " + d.Name
	}
	return fmt.Sprintf("pod %s on node %s", d.Name, d.Node)
}

func (d Doom) why() string {
	if d.Message == "" {
		return d.Cause
	}
	return d.Cause + ": " + d.Message
}

// tellWithdrawn tells people of dooms that are no more.
func (s *State) tellWithdrawn(next []Doom) {
	for _, d := range s.Record.Doomed {
		if !slices.ContainsFunc(next, func(o Doom) bool { return o.Pod == d.Pod }) {
			s.tellDoom(d, false, fmt.Sprintf("stays: %s is over", d.Cause))
		}
	}
}

// mustStay says whether a doom cannot be withdrawn any more: it was carried out, the pod is being deleted, or this
// package itself has given it up. That a Job rests is over when it goes on, whatever its pods were told meanwhile.
func (s *State) mustStay(d Doom) bool {
	m := &s.slots[d.Slot]
	leaves := m.known && m.pod.UID == d.Pod && m.report.Leaving
	return s.stage(d.Pod) >= replaceCommitted || d.Cause == PodDeleted || d.Cause == AgentSilent || d.Cause == HardwareSuspected || leaves && !d.rests()
}

func (s *State) doomOfPod(pod string) *Doom {
	for i := range s.Record.Doomed {
		if s.Record.Doomed[i].Pod == pod {
			return &s.Record.Doomed[i]
		}
	}
	return nil
}

// doom is why the pod that holds a slot must go; nil: it need not.
func (s *State) doom(slot Slot) *Doom {
	for i := range s.Record.Doomed {
		if d := &s.Record.Doomed[i]; d.Slot == slot && (!s.slots[slot].known || s.slots[slot].pod.UID == d.Pod) {
			return d
		}
	}
	return nil
}

// doomCause is the failure that the dooms stand for; nil: there is none.
func (s *State) doomCause() *cause.Cause {
	for _, d := range s.Record.Doomed {
		if s.orphan(d) && s.lost(d.Slot) == nil || s.stage(d.Pod) >= replaceCommitted {
			continue
		}
		return s.lossOf(d)
	}
	return nil
}

// lossOf is the cause of a generation's end that a doom stands for.
func (s *State) lossOf(d Doom) *cause.Cause {
	c := &cause.Cause{Code: cause.PodReplaced, Slot: int(d.Slot), Rank: s.baseRank(d.Slot), Message: fmt.Sprintf("%s: %s", d.where(), d.why())}
	switch {
	case d.rests():
		c.Code, c.Message = cause.JobSuspended, "the Job is suspended"
	case d.Cause == AgentSilent:
		c.Code = cause.PodLost // nobody says that it had to leave its place: what falls silent again and again is counted
	}
	return c
}

// orphan: another pod holds the slot of a doomed one.
func (s *State) orphan(d Doom) bool {
	m := &s.slots[d.Slot]
	return m.known && m.pod.UID != d.Pod
}

// Ticks says whether Tick is wanted every so often.
func (s *State) Ticks() bool {
	return (len(s.Record.Doomed) > 0 || s.Record.Phase == Halting) && !s.Final() && !s.over
}
