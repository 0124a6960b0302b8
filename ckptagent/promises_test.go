package ckptagent

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// promises are rules that hold after every event, in random histories and in scripts. They do not depend on golden files.
type promises struct {
	fail     func(format string, args ...any)
	started  map[int64]bool
	returned []int
	highest  int64
}

// effect checks an effect, while that many ranks run.
func (p *promises) effect(f Effect, running int) {
	switch f := f.(type) {
	case Start:
		if running > 0 {
			p.fail("generation %d started while %d ranks run", f.Run.Number, running)
		}
		if p.started[f.Run.Number] {
			p.fail("generation %d started twice", f.Run.Number)
		}
		p.started[f.Run.Number] = true
	case Fetch:
		if f.Mark.Step != 0 && running > 0 {
			p.fail("step %d is fetched while %d ranks run", f.Mark.Step, running)
		}
	case TakeInventory:
		if running > 0 {
			p.fail("inventory while %d ranks run", running)
		}
	case Return:
		p.returned = append(p.returned, f.Returned.Code)
	}
}

// state checks the state after an event and its effects, while that many ranks run.
func (p *promises) state(s State, running int) {
	if s.Generation < p.highest {
		p.fail("generation fell from %d to %d", p.highest, s.Generation)
	}
	p.highest = s.Generation
	if s.Clean && running > 0 {
		p.fail("clean, but %d ranks run", running)
	}
	if r := s.Report(); r.State == protocol.StateHalted && running > 0 {
		p.fail("HALTED while %d ranks run", running)
	}
	if s.Fetching.Step != 0 && !s.Clean {
		p.fail("fetching %v while a generation runs", s.Fetching)
	}
	if m := s.Copying; m.Step != 0 && m.Generation != s.Run.Number {
		p.fail("copying %v in generation %d", m, s.Run.Number)
	}
	if s.Returned != nil && slices.ContainsFunc(p.returned, func(c int) bool { return c != s.Returned.Code }) {
		p.fail("the launcher returned %v and then %d", p.returned, s.Returned.Code)
	}
}
