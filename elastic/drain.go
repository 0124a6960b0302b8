package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// drain is the time in which the ranks go on to a common step, stay there, and pods to be replaced copy it out.
// How long it may take stands in deadline.go.
//
//	barrier set ──► all stay at a step ≥ it: mark chosen ──► pods to be replaced copied it ──► halt
//	   └──────────── deadline, a failure, or nothing to be had ────────────────────────► halt
type drain struct {
	since   time.Time
	barrier barrier.Barrier
	mark    protocol.Mark
	// over: pods to be replaced have copied what they could, or that is given up. All is to halt.
	over bool
}

// advanceDrain begins the drain or goes on with it, until it is over.
func (s *State) advanceDrain(now time.Time) {
	if s.run.drain == nil {
		s.run.drain = &drain{since: now}
	}
	d := s.run.drain
	if why := s.undrainable(now); why != "" {
		s.abandonDrain(why)
		return
	}
	if !s.allDrain() {
		return
	}
	s.advanceBarrier(now)
	s.chooseMark(now)
	if d.mark == (protocol.Mark{}) {
		return
	}
	copied := s.copied(d.mark)
	s.recordCopies(d.mark)
	if !copied {
		return
	}
	d.over = true
	s.emit(EmitEvent{Notice{Reason: NoticeDrained, Message: fmt.Sprintf("step %d is in storage, copied by %s", d.mark.Step, s.replacements.Names())}})
	s.save()
}

// allDrain reports whether the agents of all pods can be given a barrier step.
func (s *State) allDrain() bool {
	return s.members.All(func(m *members.Member) bool { return m.Drains(s.generation.Number) })
}

// undrainable returns why a drain is useless, or is no longer useful; "" where it is useful.
func (s *State) undrainable(now time.Time) string {
	for _, d := range s.replacements.Uncommitted() {
		m := s.members.At(d.Slot)
		if d.Dead {
			return fmt.Sprintf("%s is dead", d.Where())
		}
		if m.Known() && m.Pod().UID == d.Pod && !m.Report().Storage {
			return fmt.Sprintf("pod %s has no storage to copy to", d.Name)
		}
	}
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		switch {
		case !m.Known():
		case m.Report().StateBytes == 0:
			return "state is not kept in memory"
		}
	}
	switch took := now.Sub(s.run.drain.since); {
	case now.After(s.replacements.DrainUntil()):
		return fmt.Sprintf("it timed out after %s", took.Round(time.Millisecond))
	case took > replacements.HaltTime && !s.allDrain():
		return "not all agents are connected"
	}
	return ""
}

// abandonDrain ends the drain without a copy.
func (s *State) abandonDrain(why string) {
	s.run.drain.mark, s.run.drain.over = protocol.Mark{}, true
	if !s.ledger.Copies() && s.replacements.AllSuspended() {
		return // people who suspend a Job without storage know what it costs
	}
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeNotDrained, Message: fmt.Sprintf("no drain of %s: %s", s.replacements.Names(), why)}})
}

// advanceBarrier sets the barrier step, and moves it when ranks can no longer meet there.
func (s *State) advanceBarrier(now time.Time) {
	b := &s.run.drain.barrier
	b.Note(s.members.Levels(), s.members.All(func(m *members.Member) bool { return m.Report().BarrierStep == b.Step() }), now)
	if b.Move(s.account.Pace(), s.members.LowestNewest(), s.drainTime()/replacements.StuckShare, now) {
		s.emit(Broadcast{})
	}
}

// drainTime is how long the drain may take in all.
func (s *State) drainTime() time.Duration { return s.replacements.DrainUntil().Sub(s.run.drain.since) }

// chooseMark chooses the step that pods to be replaced copy: the one at which all ranks stay or, if that takes longer
// than half of the available time, the newest step that all ranks hold.
func (s *State) chooseMark(now time.Time) {
	d, all := s.run.drain, s.drainTime()
	before := d.mark
	if d.mark != (protocol.Mark{}) && !s.possible(d.mark) {
		d.mark = protocol.Mark{}
	}
	late := max(now.Sub(d.since), d.barrier.Ahead(s.account.Pace())) > all/replacements.LateShare
	if d.mark == (protocol.Mark{}) && s.generation.CommonStep() > 0 &&
		(late || d.barrier.AtBarrier(s.account.Pace(), all/replacements.StuckShare, now)) {
		d.mark = s.generation.Mark(s.generation.CommonStep())
	}
	if d.mark != before {
		s.emit(Broadcast{})
	}
}

// possible reports whether every pod that is to be replaced has copied the step or still can.
func (s *State) possible(mark protocol.Mark) bool {
	for _, d := range s.replacements.All() {
		if m := s.members.At(d.Slot); m.Pod().UID == d.Pod && !m.CanWrite(mark) && !s.generation.HasPart(d.Slot, mark.Point()) {
			return false
		}
	}
	return true
}

// owesCopy reports whether storage still lacks a pod's part of a step, and the pod is not fenced.
func (s *State) owesCopy(d Termination, mark protocol.Mark) bool {
	return s.members.At(d.Slot).Pod().UID == d.Pod && !s.replacements.Fenced(d.Pod) && !s.generation.HasPart(d.Slot, mark.Point())
}

// copied reports whether every pod that is to be replaced has copied the step; recordCopies records it.
func (s *State) copied(mark protocol.Mark) bool {
	return !slices.ContainsFunc(
		s.replacements.All(),
		func(d Termination) bool { return s.owesCopy(d, mark) && !s.members.At(d.Slot).Wrote(mark) },
	)
}

// recordCopies records what pods to be replaced have copied of a step.
func (s *State) recordCopies(mark protocol.Mark) {
	for _, d := range s.replacements.All() {
		if s.owesCopy(d, mark) && s.members.At(d.Slot).Wrote(mark) {
			s.ledger.KeepCopy(mark, s.generation.BaseRank(d.Slot), s.members.At(d.Slot).Report().Rank)
		}
	}
	if s.ledger.TakeComplete(mark, s.members.World(), s.account.SealedAt(mark.Step), s.now) {
		s.emit(Broadcast{})
	}
}

// copiedAfterHalt reports whether pods that are to be replaced and still live have copied what they were asked for, or
// cannot. It is valid once copyAfterHalt has run.
func (s *State) copiedAfterHalt() bool {
	return !s.awaitsAgent && s.run.postHaltCopy == protocol.Mark{}
}

// copyAfterHalt has pods that are to be replaced and still live copy the step that the next generation needs, while
// everything is halted, and records what they copied.
func (s *State) copyAfterHalt(now time.Time) {
	mark, late := protocol.Mark{}, now.After(s.replacements.DrainUntil())
	awaits := !late && s.mayAttach(now)
	if s.awaitsAgent && !awaits {
		s.emit(Broadcast{})
	}
	if s.awaitsAgent = awaits; awaits {
		return
	}
	if !late {
		mark = s.postHaltMark()
	}
	if mark != s.run.postHaltCopy {
		s.run.postHaltCopy = mark
		s.emit(Broadcast{})
	}
	if mark == (protocol.Mark{}) {
		return
	}
	copied := s.copied(mark)
	s.recordCopies(mark)
	if !copied {
		return
	}
	s.run.postHaltCopy = protocol.Mark{}
	s.emit(EmitEvent{Notice{Reason: NoticeDrained, Message: fmt.Sprintf("step %d is in storage, copied by %s", mark.Step, s.replacements.Names())}})
	s.save() // before any of these pods may go
	s.emit(Broadcast{})
}

// mayAttach reports whether this coordinator has just started and the agent of a pod that is to be replaced has not
// attached yet: the state in its memory may be needed.
func (s *State) mayAttach(now time.Time) bool {
	return s.generation.Number > 0 && now.Sub(s.beganAt) < replacements.HaltTime &&
		s.replacements.AnyUnknown()
}

// postHaltMark returns the step that pods to be replaced must copy before they are deleted; none where they need not or
// cannot.
func (s *State) postHaltMark() protocol.Mark {
	p := s.generation.Plan()
	if p.Step == 0 {
		return protocol.Mark{}
	}
	mark, need := protocol.Mark{Step: p.Step, Generation: s.generation.Number, Branch: p.Branch}, false
	for _, d := range s.replacements.All() {
		if !s.owesCopy(d, mark) {
			continue
		}
		if !s.members.At(d.Slot).CanSave(s.generation.Number, mark) {
			return protocol.Mark{} // this step will be gone with the pod
		}
		need = true
	}
	if !need {
		return protocol.Mark{}
	}
	return mark
}
