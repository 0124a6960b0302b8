package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// shouldMove reports whether a failure that hardware may have caused moves the pod that failed first: the same suspect was found before,
// without progress since, or no restart is left and the gang would be given up. A pod that lacks something is moved at once if the gang can
// train without it meanwhile.
func (s *State) shouldMove(c cause.Cause) bool {
	if !s.canMove(c) {
		return false
	}
	left, _ := s.restartsLeft()
	return left <= 0 || s.spares(c) || s.account.SuspectedBefore(c.Suspect) && s.generation.SurvivesWithout(s.members.AtFault(c))
}

// spares reports whether a pod lacks something, and the gang can train without it.
func (s *State) spares(c cause.Cause) bool {
	return c.Suspect == cause.SuspectPod && s.sizes.Min > 0 && s.fits(s.members.Parts()-1) > 0
}

// canMove reports whether there is a pod that a failure makes suspect, which was not moved for that before.
func (s *State) canMove(c cause.Cause) bool {
	if c.Suspect == "" || c.Slot < 0 || s.members.Parts() == 1 || s.account.Moved(c.Suspect) && !s.spares(c) {
		return false
	}
	slot := s.members.AtFault(c)
	return s.replacements.For(slot) == nil && s.members.At(slot).Known()
}

// move requests the pod's replacement in the recovery that is about to be opened.
func (s *State) move(c cause.Cause, now time.Time) {
	slot := s.members.AtFault(c)
	pod := s.members.At(slot).Pod()
	when := "again without progress"
	if s.spares(c) {
		when = "before its first step, and other pods have made steps"
	} else if !c.Still() && !s.account.SuspectedBefore(c.Suspect) {
		when = fmt.Sprintf("after %d restarts without progress", protocol.RestartsWithoutProgress)
	}
	why := fmt.Sprintf("%s occurred %s; the pod moves to another node, because this one may be at fault", c.Suspect, when)
	if !s.account.Moved(c.Suspect) {
		s.account.NoteMoved(c.Suspect)
	}
	d := Termination{Slot: slot, Pod: pod.UID, Name: pod.Name, Node: pod.Node, Cause: replacements.HardwareSuspected, Message: why}
	d = replacements.Move(d, now)
	s.announce([]replacements.Note{s.replacements.GiveUp(d, now)})
}
