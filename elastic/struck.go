package elastic

import (
	"slices"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/quorum"
)

// A script may be unable to run with some numbers of pods, such as one whose batch does not divide. An exception that it raises in a
// generation with fewer pods than all, before any rank has finished a step, is no failure of the job: that number is struck, and the gang
// goes on with another one. So is a number with which ranks repeatedly fail to restore a step that they may restore with all pods. With
// all pods nothing is struck.
//
// An exception that does not depend on the number of ranks, such as a module that is missing (cause.Lacks), strikes none: it counts as with
// all pods. In a pod that never made a step, while others have made steps, it is that pod's: the pod is suspected (suspect.go).
//
// While no generation of the launcher has finished a step, the script may be unable to run at all: the same exception with a second number
// of pods is then a repeated failure, and ends the gang.

// maxStruckText bounds the exception of a struck size.
const maxStruckText = 300

// noteStruck strikes the generation's number of pods if the generation failed because the script cannot run with it; it reports whether it
// did. again: the script has never made a step, and another number was struck for the same exception.
func (s *State) noteStruck(c *cause.Cause) (struck, again bool) {
	if s.sizes.Min <= 0 || len(s.generation.Out()) == 0 {
		return false, false
	}
	switch {
	case c.Code == cause.RestoreFailed:
		if !s.account.FailsToRestore(s.generation.RestoreStep, *c) {
			return false, false
		}
	case !c.Refuses() || !s.generation.Stepless(s.run.halting.detected):
		return false, false
	case !s.account.Worked(s.generation.After) && s.struckFor(struckText(c)):
		return false, true
	}
	s.strike(c)
	return true, false
}

// lacking reports whether the pod in which an exception was raised before any step lacks what other pods have: it is newer than the job's
// first ranks and is not known to have made a step, and another pod of the generation has, none of which raised such an exception as well.
func (s *State) lacking(c cause.Cause) bool {
	if !c.Lacks() || !s.account.Worked(s.generation.After) || !s.generation.Stepless(s.run.halting.detected) {
		return false
	}
	if m := s.members.At(Slot(c.Slot)); m.Worked() || !m.Pod().Created.After(s.account.StartedAt()) {
		return false
	}
	others := false
	for slot, m := range s.members.Each {
		if m.Worked() && s.generation.Lacked(slot) {
			return false
		}
		others = others || m.Worked()
	}
	return others
}

// struckFor reports whether a number of pods was struck for this exception.
func (s *State) struckFor(text string) bool {
	return slices.ContainsFunc(s.sizes.struck, func(z quorum.Struck) bool { return z.Text == text })
}

// strike strikes the generation's number of pods for the failure that ended it.
func (s *State) strike(c *cause.Cause) {
	c.Code = cause.SizeStruck
	s.sizes.struck = append(slices.Clone(s.sizes.struck), quorum.Struck{
		Pods:       s.members.Parts(),
		Generation: s.generation.Number,
		Text:       struckText(c),
	})
}

// struckText returns the exception, for users.
func struckText(c *cause.Cause) string { return cause.Cut(cause.LastLine(c.Message), maxStruckText) }
