package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/replacements"
)

// shouldMove reports whether a failure that hardware may have caused moves the pod that failed first: the same suspect was found before,
// without progress since.
func (s *State) shouldMove(c cause.Cause) bool {
	if c.Suspect == "" || c.Slot < 0 || s.members.Len() == 1 || s.account.Moved(c.Suspect) {
		return false
	}
	slot := s.members.AtFault(c)
	if s.replacements.For(slot) != nil || !s.members.At(slot).Known() {
		return false
	}
	left, _ := s.restartsLeft()
	return left <= 0 || s.account.SuspectedBefore(c.Suspect) && s.generation.SurvivesWithout(slot)
}

// move requests the pod's replacement in the recovery that is about to be opened.
func (s *State) move(c cause.Cause, now time.Time) {
	slot := s.members.AtFault(c)
	pod := s.members.At(slot).Pod()
	why := fmt.Sprintf("%s occurred again without progress; the pod moves to another node, because this one may be at fault", c.Suspect)
	s.account.NoteMoved(c.Suspect)
	d := replacements.Move(Termination{Slot: slot, Pod: pod.UID, Name: pod.Name, Node: pod.Node, Message: why}, now)
	s.announce([]replacements.Note{s.replacements.GiveUp(d, now)})
}
