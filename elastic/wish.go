package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
)

// A user may request a node check before the next generation, also of a job that wants none, and that ranks are restarted for it. Requests
// are numbered: each is taken once, and a withdrawn one has number 0.

// takeWish has the next generation checked if there is a new request, and withdraws a check that is no longer wanted.
func (s *State) takeWish(now time.Time) {
	c, wish := &s.Record.Check, s.supervision.CheckWish
	switch open := c.open(s.generation.Number); {
	case s.Final() || s.over:
	case open && wish == 0 && c.Wish > 0 && c.Result == CheckOrdered && !c.Decides:
		*c = Check{}
		s.saveAndTell()
	case wish <= s.Record.CheckWish:
	case open:
		s.Record.CheckWish, c.Wish = wish, wish
		s.saveAndTell()
	default:
		s.Record.CheckWish = wish
		*c = Check{Before: s.generation.Number + 1, Began: now, Result: CheckOrdered, Wish: wish}
		s.saveAndTell()
	}
}

// open reports whether the check before the generation after this one is due or under way.
func (c *Check) open(generation int64) bool {
	return c.Before == generation+1 && c.Result != "" && c.Ended.IsZero()
}

// wished reports whether a user wants the check that is due or under way.
func (s *State) wished() bool {
	c := &s.Record.Check
	return c.open(s.generation.Number) && c.Wish > 0 && c.Wish == s.supervision.CheckWish
}

// withdrawCheck records that a generation begins before its check has ended.
func (s *State) withdrawCheck(now time.Time) {
	c := &s.Record.Check
	if !c.open(s.generation.Number) {
		return
	}
	c.Ended, c.Result = now, CheckWithdrawn
	if c.Decides {
		s.account.Spend()
	}
	s.emit(Checked{Result: c.Result})
	s.emit(EmitEvent{Notice{Reason: NoticeNodeCheck, Message: c.Describe(s.members.Len())}})
}

// overrules returns how a user ends the check.
func (s *State) overrules() string {
	if s.wished() {
		return "withdraw the check with kubectl holdfast check --undo"
	}
	return "annotate the job with holdfast.dev/node-check=off"
}

// haltsForCheck reports whether ranks are restarted for a check, which is stored.
func (s *State) haltsForCheck() bool {
	return s.wished() && s.supervision.CheckNow && s.Record.Check.Result == CheckOrdered && !s.members.WholeCommand() &&
		s.storedRevision >= s.revision
}

// haltForCheck ends the generation for a check.
func (s *State) haltForCheck(now time.Time) {
	failed, _ := s.generation.Failure()
	c := &cause.Cause{Code: cause.CheckRequested, Rank: -1, Slot: -1, Message: "a user requested a node check at once"}
	s.becomeHalting(generation.Suspect{Cause: c, Ordered: !failed}, now)
}
