package elastic

import (
	"slices"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/quorum"
)

// A script may be unable to run with some numbers of pods, such as one whose batch does not divide. An exception that it raises in a
// generation with fewer pods than all, before any rank has finished a step, is no failure of the job: that number is struck, and the gang
// goes on with another one. With all pods nothing is struck.

// maxStruckText bounds the exception of a struck size.
const maxStruckText = 300

// noteStruck strikes the generation's number of pods if the generation failed because the script cannot run with it; it reports whether it
// did.
func (s *State) noteStruck(c *cause.Cause) bool {
	if s.sizes.Min <= 0 || len(s.generation.Out()) == 0 || !c.Refuses() || !s.generation.Stepless(s.run.halting.detected) {
		return false
	}
	c.Code = cause.SizeStruck
	s.sizes.struck = append(slices.Clone(s.sizes.struck), quorum.Struck{
		Pods:       s.members.Parts(),
		Generation: s.generation.Number,
		Text:       cause.Cut(cause.LastLine(c.Message), maxStruckText),
	})
	return true
}
