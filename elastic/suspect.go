package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// shouldMove says whether a failure that hardware may be to blame for moves the pod first at fault: where the same suspicion comes
// again without progress, or the budget is spent, once per suspicion. Before that a restart in place is cheaper, and keeps what is
// held in memory; after it, the budget is all there is. A pod that would take the only copy of its ranks' state with it moves only when
// the budget is spent, when all of it would be lost anyway. The pod of a gang of one stays: no other pod runs the same script without it.
//
// Whether another node has room the scheduler knows. The pod is replaced as any other: the new one is placed while the old one still
// holds its room, so that it goes elsewhere where it can, and comes back to the same node where that is the only one.
func (s *State) shouldMove(c cause.Cause) bool {
	if c.Suspect == "" || c.Slot < 0 || len(s.slots) == 1 || slices.Contains(s.Record.Moved, c.Suspect) {
		return false
	}
	slot := s.atFault(c)
	if s.doom(slot) != nil || !s.slots[slot].known {
		return false
	}
	return s.Record.left() <= 0 || s.suspectedBefore(c.Suspect) && s.spares(slot)
}

// spares says whether the step that all ranks would go on from is still to be had once the pod of a slot is gone.
func (s *State) spares(slot Slot) bool {
	p := s.plan(s.absent)
	return p.step == 0 || s.safe(slot, p.step) || s.canSave(slot, Mark{p.step, s.Record.Generation})
}

// suspectedBefore says whether there was the same suspicion since the last progress.
func (s *State) suspectedBefore(by cause.Suspect) bool {
	left := s.Record.WithoutProgress
	for i := len(s.Record.Recoveries) - 1; i >= 0 && left > 0; i-- {
		old := &s.Record.Recoveries[i].Cause
		switch {
		case old.Code == cause.PortConflict || old.Displaced():
		case old.Suspect == by:
			return true
		default:
			left--
		}
	}
	return false
}

// atFault is the slot of the pod that is at fault: the one that several others say they lost, else that of the rank which failed first.
func (s *State) atFault(c cause.Cause) Slot {
	for i := range s.slots {
		if m := &s.slots[i]; m.known && c.Accused != "" && m.report.Address == c.Accused {
			return Slot(i)
		}
	}
	return Slot(c.Slot)
}

// move has the pod replaced in the recovery that is about to be opened.
func (s *State) move(c cause.Cause, now time.Time) {
	slot := s.atFault(c)
	m := &s.slots[slot]
	d := Doom{Slot: slot, Pod: m.pod.UID, Name: m.pod.Name, Node: m.pod.Node, Cause: HardwareSuspected, At: now, Deadline: now.Add(doomTime),
		Message: fmt.Sprintf("%s came again without progress; if the node is to blame, another one helps", c.Suspect)}
	s.Record.Moved = append(slices.Clone(s.Record.Moved), c.Suspect)
	s.give(d, now)
}
