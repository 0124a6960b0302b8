package elastic

import (
	"fmt"
	"slices"
	"time"
)

// How long a drain may take in all stands in deadline.go.
const (
	// leadTime is how far ahead of the newest step that was told a hold is set, so that it comes to every
	// rank before the rank is there; leadMost bounds it in steps, leadUnknown is for a pace not known yet.
	leadTime    = 300 * time.Millisecond
	leadMost    = 1000
	leadUnknown = 2
	// restHeard is how long nothing may have moved before ranks are believed to stay where they are, restUnheard the same where not
	// all agents say that they have passed the hold on, as those that were built before they could say it.
	restHeard, restUnheard = 100 * time.Millisecond, time.Second
)

// drain is the time in which the ranks go on to a common step, stay there, and doomed pods copy it out.
//
//	hold chosen ──► all stay at a step ≥ hold: mark chosen ──► doomed pods copied it ──► halt
//	   └──────────── deadline, a failure, or nothing to be had ────────────────────────► halt
type drain struct {
	since  time.Time
	hold   int64
	raised bool
	// heard is the newest step that was told when all agents had passed this hold on; unheard before.
	heard int64
	// seen is how far ranks were seen to be, still since when none of it has changed.
	seen  levels
	still time.Time
	mark  Mark
	// over: doomed pods have copied what they could, or that is given up. All is to halt.
	over bool
}

const unheard = -1

// levels are how far the ranks of a gang are: the newest step that any told, the lowest of what each told, the newest that any holds, the
// newest that all hold.
type levels struct{ told, lowestTold, newest, common int64 }

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
	until := s.drainUntil()
	s.note(now)
	s.chooseHold(now, until)
	s.chooseMark(now, until)
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

// told is the newest step that any rank finished or sealed.
func (s *State) told() int64 {
	step := int64(0)
	for i := range s.slots {
		for _, k := range s.slots[i].report.Rank {
			step = max(step, k.Step, newest(k.Sealed))
		}
	}
	return step
}

// lowestTold is the lowest, over all ranks, of the newest step that each finished or sealed.
func (s *State) lowestTold() int64 {
	return s.lowest(func(k *Rank) int64 { return max(k.Step, newest(k.Sealed)) })
}

// highestNewest is the newest step that any rank holds.
func (s *State) highestNewest() int64 {
	high := int64(0)
	for i := range s.slots {
		for _, k := range s.slots[i].report.Rank {
			high = max(high, newest(k.Sealed))
		}
	}
	return high
}

func (s *State) lead() int64 {
	if s.pace <= 0 {
		return leadUnknown
	}
	return min(1+int64((leadTime+s.pace-1)/s.pace), leadMost)
}

// note takes down of how far ranks are, and whether all agents have passed the hold on.
func (s *State) note(now time.Time) {
	d := s.run.drain
	seen := levels{told: s.told(), lowestTold: s.lowestTold(), newest: s.highestNewest(), common: s.commonStep()}
	if seen != d.seen {
		d.seen, d.still = seen, now
	}
	switch all := s.all(func(m *member) bool { return m.report.Hold == d.hold }); {
	case !all: // or not any more: an agent that is alone for long lets its ranks go
		d.heard = unheard
	case d.heard == unheard:
		d.heard, d.still = seen.told, now
	}
}

// chooseHold sets the step at which ranks stay, and moves it on where it brings them together no more: once where each has
// saved a step beyond it, but not the same one, and whenever they are stuck.
func (s *State) chooseHold(now, until time.Time) {
	d := s.run.drain
	apart := d.hold != 0 && d.seen.common < d.hold && s.lowestNewest() >= d.hold && !d.raised
	if d.hold != 0 && !apart && !s.stuck(now, until) {
		return
	}
	d.hold, d.heard, d.raised, d.still = d.seen.told+s.lead(), unheard, d.raised || apart, now
	s.emit(Direct{})
}

// stuck says whether some ranks are held while others, which finished that step and did not save it, wait for them in the next one,
// as where an agent hangs and hands out no slot. Nothing moves then. A copy that is yet to be sealed looks the same, so that takes
// a while to be sure of; and while steps go by, the next save may well be beyond the hold.
func (s *State) stuck(now, until time.Time) bool {
	d := s.run.drain
	held := d.seen.newest >= d.hold && d.seen.lowestTold >= d.hold
	return held && d.seen.common < d.seen.told && now.Sub(d.still) > max(until.Sub(d.since)/stuckShare, 2*s.pace)
}

// chooseMark names the step that doomed pods copy: the one that all are held at, or, where that does not
// come in half of the time there is, the newest that all hold now.
func (s *State) chooseMark(now, until time.Time) {
	d := s.run.drain
	before := d.mark
	if d.mark != (Mark{}) && !s.possible(d.mark) {
		d.mark = Mark{}
	}
	window := until.Sub(d.since)
	late := now.Sub(d.since) > window/lateShare || s.pace > 0 && s.pace*time.Duration(d.hold-d.seen.told) > window/lateShare
	if d.mark == (Mark{}) && s.run.common > 0 && (s.held(now, window/stuckShare) || late) {
		d.mark = Mark{s.run.common, s.Record.Generation}
	}
	if d.mark != before {
		s.emit(Direct{})
	}
}

// held says whether all ranks stay at one step. Word of the hold can take longer than its lead; they pass it then, a step each pace, and
// whoever is in the middle of one when word comes ends it yet. It is believed after most at the latest.
func (s *State) held(now time.Time, most time.Duration) bool {
	d := s.run.drain
	rest := restHeard
	switch {
	case d.heard == unheard, d.heard >= d.hold && s.beat == 0: // a coordinator that began in the middle knows of no beat
		rest = max(2*s.beat, restUnheard)
	case d.heard >= d.hold:
		rest = max(2*s.beat, restHeard)
	}
	return d.seen.common >= d.hold && d.seen.common == d.seen.told && now.Sub(d.still) >= min(rest, most)
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
