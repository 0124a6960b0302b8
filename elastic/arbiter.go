package elastic

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// Before a gang ends by SameFailureTwice for a crash that is not in the script's own words, a node check is the arbiter, once: if it has a
// pod replaced, the gang goes on; else it ends.

// arbitrates reports whether a node check decides about a failure that occurred twice.
func (s *State) arbitrates(c cause.Cause) bool {
	return s.supervision.NodeCheck != CheckNever && s.members.Len() > 1 && !s.members.WholeCommand() && c.Crashed() && !s.account.Checked(c)
}

// orderArbiter has the next generation checked; another coordinator must not begin it without.
func (s *State) orderArbiter(now time.Time) {
	wish := int64(0)
	if s.Record.Check.open(s.generation.Number) {
		wish = s.Record.Check.Wish
	}
	s.Record.Check = Check{Before: s.generation.Number + 1, Began: now, Result: CheckOrdered, Decides: true, Wish: wish}
	s.saveAndTell()
}

// arbitrated carries out what the check has decided.
func (s *State) arbitrated(now time.Time) {
	c := s.account.Repairing(s.generation.Number)
	switch {
	case !s.Record.Check.Decides || c == nil:
	case s.Record.Check.Replaced > 0:
		s.account.Spend()
	default:
		first := *c
		s.becomeFinal(Verdict{Reason: ReasonSameFailureTwice, ExitCode: cmp.Or(c.ExitCode, 1), Cause: &first, At: now}, GivenUp)
	}
}
