package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/replacements"
)

// listed handles a new level of terminating pods.
func (s *State) listed(notes []replacements.Note, changed bool) {
	s.announce(notes)
	if changed {
		s.refresh()
		s.saveAndTell()
	}
}

// gaveUp handles pods that were given up.
func (s *State) gaveUp(notes []replacements.Note) {
	s.announce(notes)
	if len(notes) > 0 {
		s.saveAndTell()
	}
}

// saveAndTell emits Persist and Broadcast: directives depend on the record.
func (s *State) saveAndTell() {
	s.save()
	s.emit(Broadcast{})
}

// announce emits events about terminating pods.
func (s *State) announce(notes []replacements.Note) {
	for _, n := range notes {
		s.emit(EmitEvent{Notice{Warning: n.Warning, Reason: NoticeReplacementPending, Message: n.Message}})
	}
}

// commit commits terminations while all ranks are halted: it writes them into the account of the recovery. Once that is stored, Replace is
// emitted for each.
func (s *State) commit() {
	generation := s.generation.Number
	if !s.account.Repairs(generation) { // before the first generation of a launcher
		if all := s.replacements.RequestAll(); len(all) > 0 {
			s.request(all)
			s.saveAndTell()
		}
		return
	}
	all := s.replacements.Commit(s.account.MayReplace())
	for _, d := range all {
		by := Pod{}
		if s.members.Orphan(d.Slot, d.Pod) {
			by = s.members.At(d.Slot).Pod()
		}
		s.account.Replace(generation, d, by)
	}
	if len(all) > 0 {
		s.saveAndTell()
	}
}

// request emits Replace for pods.
func (s *State) request(all []Termination) {
	for _, d := range all {
		s.emit(Replace{d})
	}
}

// requestOrphans releases pods in which nothing runs.
func (s *State) requestOrphans() {
	if s.storedRevision >= s.revision {
		s.request(s.replacements.RequestOrphans(s.generation.Lost))
	}
}

// release records that a pod was released from its job.
func (s *State) release(e Released) {
	if !s.replacements.NoteReleased(e.Pod) {
		return
	}
	s.account.NoteReleased(e.Pod, e.At)
	s.refresh()
	s.saveAndTell()
}

// succeeded records the pod that takes the slot of a replaced one.
func (s *State) succeeded(slot Slot, now time.Time) {
	pod, where := s.members.At(slot).Pod(), ""
	if pod.Node != "" {
		where = " on node " + pod.Node
	}
	for _, r := range s.account.NoteSuccessor(slot, pod, now) {
		s.emit(EmitEvent{Notice{Reason: NoticeReplaced, Message: fmt.Sprintf("%s of slot %d is replaced by pod %s%s", r.Where(), slot, pod.Name, where)}})
	}
}

// maySuspend reports whether a pod of a suspended Job has nothing left to do: all ranks are halted, the possible copies are made, and that
// is stored.
func (s *State) maySuspend(slot Slot, pod string) bool {
	m := s.members.At(slot)
	return s.Record.Phase == Forming && s.replacements.Suspended(slot) && m.Is(pod) && m.Report().Terminating &&
		m.Halted(s.generation.Number) &&
		s.drain.NothingOwed(s.now) &&
		s.storedRevision >= s.revision
}

// TakesOver reports whether a pod takes over its slot from old (package members).
func (s *State) TakesOver(p, old Pod) bool {
	return s.members.TakesOver(p, old, s.replacements.Fenced(old.UID))
}

// Ticks reports whether Tick is needed at intervals.
func (s *State) Ticks() bool {
	delayed := s.Record.Phase == Running && s.run.still.keeping.ends != nil ||
		s.sizes.Min > 0 && (s.Record.Phase == Forming || s.Record.Phase == Running && !s.run.growth.readyAt.IsZero())
	return (!s.replacements.None() || s.Record.Phase == Halting || delayed) && !s.Final() && !s.over
}

// holderKnown handles the API server's answer about a slot whose agent is unreachable.
func (s *State) holderKnown(e SlotHolder, now time.Time) {
	if s.Record.Phase == Forming {
		s.noteRoom(e)
		return
	}
	if s.Record.Phase != Halting || !s.run.halting.watch.Silent(e.Slot) {
		return
	}
	if e.Succeeded { // its agent could not report that without a coordinator
		s.members.Leave(e.Slot)
		s.saveAndTell()
		return
	}
	if old := s.members.At(e.Slot).Pod(); e.Pod.UID != "" && old.UID != "" && s.TakesOver(e.Pod, old) { // the old pod's processes are gone
		s.members.HandOver(e.Slot, e.Pod)
		s.run.halting.forget(e.Slot)
		s.emit(Broadcast{})
	}
	s.gaveUp(s.run.halting.watch.Holder(e.Slot, e.Pod, e.Runs, now))
}
