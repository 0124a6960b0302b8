package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
)

// drain is the time in which the ranks go on to a common step, stay there, and doomed pods copy it out.
// How long it may take stands in deadline.go.
//
//	hold chosen ──► all stay at a step ≥ hold: mark chosen ──► doomed pods copied it ──► halt
//	   └──────────── deadline, a failure, or nothing to be had ────────────────────────► halt
type drain struct {
	since   time.Time
	barrier barrier.Barrier
	mark    Mark
	// over: doomed pods have copied what they could, or that is given up. All is to halt.
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
	if !s.all(s.drains) {
		return
	}
	s.hold(now)
	s.chooseMark(now)
	if d.mark == (Mark{}) {
		return
	}
	copied := s.copied(d.mark)
	s.recordCopies(d.mark)
	if !copied {
		return
	}
	d.over = true
	s.emit(Tell{Notice{Reason: NoticeDrained, Message: fmt.Sprintf("step %d of %s is in storage", d.mark.Step, s.doomedNames())}})
	s.save()
}

// drains: the agent of a pod can be told to hold, and says how far its ranks are.
func (s *State) drains(m *member) bool { return m.attached && s.current(m) }

// undrainable says why waiting is of no use, or no longer; "": it is of use.
func (s *State) undrainable(now time.Time) string {
	for _, d := range s.pendingDooms() {
		m := &s.slots[d.Slot]
		if d.Dead {
			return fmt.Sprintf("%s is dead", d.where())
		}
		if m.known && m.pod.UID == d.Pod && m.report.Protocol >= 2 && !m.report.Storage {
			return fmt.Sprintf("pod %s has no storage to copy to", d.Name)
		}
	}
	for i := range s.slots {
		m := &s.slots[i]
		switch {
		case !m.known:
		case m.report.Protocol < 2:
			return fmt.Sprintf("the agent of pod %s speaks protocol %d, which knows of no drain", m.pod.Name, m.report.Protocol)
		case m.report.StateBytes == 0:
			return "state is not kept in memory"
		}
	}
	switch took := now.Sub(s.run.drain.since); {
	case now.After(s.drainUntil()):
		return fmt.Sprintf("its time was over after %s", took.Round(time.Millisecond))
	case took > haltTime && !s.all(s.drains):
		return "not all agents are connected"
	}
	return ""
}

// abandonDrain ends the drain without a copy.
func (s *State) abandonDrain(why string) {
	s.run.drain.mark, s.run.drain.over = Mark{}, true
	if s.storage <= 0 && len(s.toReplace()) == 0 {
		return // people who suspend a Job without storage know what it costs
	}
	s.emit(Tell{Notice{Warning: true, Reason: NoticeNotDrained, Message: fmt.Sprintf("%s goes without a drain: %s", s.doomedNames(), why)}})
}

func (s *State) doomedNames() string {
	names := ""
	for i, d := range s.pendingDooms() {
		if i > 0 {
			names += ", "
		}
		names += "pod " + d.Name
	}
	return names
}

// hold has ranks stay at a step, and moves it on where it brings them together no more.
func (s *State) hold(now time.Time) {
	b := &s.run.drain.barrier
	b.Note(s.levels(), s.all(func(m *member) bool { return m.report.Hold == b.Hold() }), now)
	if b.Move(s.tempo(), s.lowestNewest(), s.drainTime()/stuckShare, now) {
		s.emit(Direct{})
	}
}

// levels is how far ranks are.
func (s *State) levels() barrier.Levels {
	l := barrier.Levels{Common: s.commonStep(), LowestTold: s.lowest(func(k *Rank) int64 { return max(k.Step, newest(k.Sealed)) })}
	for i := range s.slots {
		for _, k := range s.slots[i].report.Rank {
			l.Newest = max(l.Newest, newest(k.Sealed))
			l.Told = max(l.Told, k.Step, l.Newest)
		}
	}
	return l
}

func (s *State) tempo() barrier.Pace { return barrier.Pace{Step: s.pace, Beat: s.beat} }

// chooseMark names the step that doomed pods copy: the one that all are held at, or, where that does not
// come in half of the time there is, the newest that all hold now.
func (s *State) chooseMark(now time.Time) {
	d, all := s.run.drain, s.drainTime()
	before := d.mark
	if d.mark != (Mark{}) && !s.possible(d.mark) {
		d.mark = Mark{}
	}
	late := max(now.Sub(d.since), d.barrier.Ahead(s.tempo())) > all/lateShare
	if d.mark == (Mark{}) && s.run.common > 0 && (late || d.barrier.Held(s.tempo(), all/stuckShare, now)) {
		d.mark = Mark{s.run.common, s.Record.Generation}
	}
	if d.mark != before {
		s.emit(Direct{})
	}
}

// possible: every doomed pod can still copy the step, or has.
func (s *State) possible(mark Mark) bool {
	for _, d := range s.Record.Doomed {
		if m := &s.slots[d.Slot]; m.pod.UID == d.Pod && !canWrite(m, mark) && !s.safe(d.Slot, mark.Step) {
			return false
		}
	}
	return true
}

// owes says whether a doomed pod that still counts has a part of a step that storage lacks.
func (s *State) owes(d Doom, mark Mark) bool {
	return s.slots[d.Slot].pod.UID == d.Pod && !s.Fenced(d.Pod) && !s.safe(d.Slot, mark.Step)
}

// copied: doomed pods owe nothing of that step any more but what recordCopies has to record.
func (s *State) copied(mark Mark) bool {
	return !slices.ContainsFunc(s.Record.Doomed, func(d Doom) bool { return s.owes(d, mark) && !wrote(&s.slots[d.Slot], mark) })
}

// recordCopies records what doomed pods have copied of a step.
func (s *State) recordCopies(mark Mark) {
	for _, d := range s.Record.Doomed {
		if s.owes(d, mark) && wrote(&s.slots[d.Slot], mark) {
			s.keep(d.Slot, mark)
		}
	}
	s.whole(mark)
}

// salvaged: doomed pods that still live have copied what they were to, or cannot. It is known once salvageDoomed has looked.
func (s *State) salvaged() bool { return !s.awaits && s.run.salvage == Mark{} }

// salvageDoomed has doomed pods which still live copy the step that will be wanted, while everything is halted, and records
// what they copied.
func (s *State) salvageDoomed(now time.Time) {
	mark, late := Mark{}, now.After(s.drainUntil())
	awaits := !late && s.mayBeHeard(now)
	if s.awaits && !awaits {
		s.emit(Direct{})
	}
	if s.awaits = awaits; awaits {
		return
	}
	if !late {
		mark = s.salvageMark()
	}
	if mark != s.run.salvage {
		s.run.salvage = mark
		s.emit(Direct{})
	}
	if mark == (Mark{}) {
		return
	}
	copied := s.copied(mark)
	s.recordCopies(mark)
	if !copied {
		return
	}
	s.run.salvage = Mark{}
	s.emit(Tell{Notice{Reason: NoticeDrained, Message: fmt.Sprintf("step %d of %s is in storage", mark.Step, s.doomedNames())}})
	s.save() // before any of these pods may go
	s.emit(Direct{})
}

// mayBeHeard: this coordinator has only begun, and a doomed pod, whose memory may be wanted, has not come to it yet.
func (s *State) mayBeHeard(now time.Time) bool {
	return s.Record.Generation > 0 && now.Sub(s.beganAt) < haltTime &&
		slices.ContainsFunc(s.pendingDooms(), func(d Doom) bool { return !d.Dead && !s.slots[d.Slot].known })
}

// salvageMark is the step that doomed pods have to copy before they go; none where they need not or cannot.
func (s *State) salvageMark() Mark {
	p := s.plan(s.absent)
	if p.step == 0 {
		return Mark{}
	}
	mark, need := Mark{p.step, s.Record.Generation}, false
	for _, d := range s.Record.Doomed {
		if !s.owes(d, mark) {
			continue
		}
		if !s.canSave(d.Slot, mark) {
			return Mark{} // this step will be gone with the pod
		}
		need = true
	}
	if !need {
		return Mark{}
	}
	return mark
}

// absent: nobody can be asked for what the pod of a slot holds in memory.
func (s *State) absent(slot Slot) bool {
	m := &s.slots[slot]
	return !m.known || s.Fenced(m.pod.UID)
}

// canSave: the pod of a slot, which is halted, can copy that step to storage before it goes.
func (s *State) canSave(slot Slot, mark Mark) bool {
	m := &s.slots[slot]
	return m.attached && m.report.Protocol >= 2 && m.report.Storage && s.halted(m) && canWrite(m, mark)
}

// whole makes of copies that every rank has left at one mark what they are: a step that lies whole in storage.
func (s *State) whole(mark Mark) {
	n := 0
	for _, c := range s.Record.Copies {
		if c.Mark == mark {
			n++
		}
	}
	if n == 0 || n < s.world() {
		return
	}
	s.Record.Durable, s.Record.Older = &StoredStep{Mark: mark, At: s.now}, s.Record.Durable
	s.Record.Copies, s.run.copying = nil, nil // what was on its way is older
	s.emit(Direct{})
}
