package elastic

import "time"

// mixedTimeout is how long a gang may be mixed: some pods start ranks with a launcher, and in others the whole command
// is the one rank, whose first run is over, so that no launcher will start there. It is longer than agents wait for the
// generation of a command that has ended.
const mixedTimeout = 15 * time.Minute

// trackMixed records since when commands have been finally mixed.
func (s *State) trackMixed(now time.Time) {
	switch mixed := s.members.MixedFinally(s.generation.Number, s.leaves) != ""; {
	case !mixed:
		s.mixedSince = time.Time{}
	case s.mixedSince.IsZero():
		s.mixedSince = now
	}
}

// leaves reports whether nothing that the pod of a slot says counts, or the pod must terminate.
func (s *State) leaves(slot Slot) bool {
	return s.replacements.Fenced(s.members.At(slot).Pod().UID) || s.replacements.For(slot) != nil
}
