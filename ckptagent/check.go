package ckptagent

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Checking is the state of node checks. Directive.Trial is a level: the trial that is wanted is answered once, and the newest answer of each
// round stays in reports until another check begins. No rank runs beside a trial.
type Checking struct {
	// Trying is the trial under way; zero: none. It is stored, so that the next incarnation ends its processes and answers that it is lost.
	Trying protocol.TrialID `json:"trying,omitzero"`
	// Answers has one answer per round of one check.
	Answers []protocol.TrialAnswer `json:"answers,omitempty"`
}

// Try starts the processes of a trial; answered by Tried.
type Try struct{ Trial protocol.Trial }

// EndTrial ends all processes of trials, also those that an earlier incarnation started; answered by Tried with outcome TrialLost.
type EndTrial struct{ Trial protocol.TrialID }

func (Try) effect()      {}
func (EndTrial) effect() {}

// Tried reports that no process of a trial is left, and how it ended.
type Tried struct{ Answer protocol.TrialAnswer }

func (e Tried) apply(m *machine) {
	if e.Answer.TrialID != m.s.Trying || m.s.Trying == (protocol.TrialID{}) {
		return
	}
	m.s.Trying, m.s.EndingTrial = protocol.TrialID{}, false
	kept := slices.DeleteFunc(slices.Clone(m.s.Answers), func(a protocol.TrialAnswer) bool {
		return a.Check != e.Answer.Check || a.Round == e.Answer.Round
	})
	m.s.Answers = append(kept, e.Answer)
}

// wantedTrial is the trial that may run now; the zero Trial: none. One that is answered is not made again.
func (s State) wantedTrial() protocol.Trial {
	t := s.Want.Trial
	if t.TrialID == (protocol.TrialID{}) || s.Want.Order == protocol.OrderRun || s.Want.Order == protocol.OrderExit || !s.settled() || s.Terminating {
		return protocol.Trial{}
	}
	if slices.ContainsFunc(s.Answers, func(a protocol.TrialAnswer) bool { return a.TrialID == t.TrialID }) {
		return protocol.Trial{}
	}
	return t
}

// try starts the wanted trial, after a trial that is not wanted any more is ended.
func (m *machine) try() {
	want := m.s.wantedTrial()
	switch {
	case m.s.Trying == want.TrialID:
	case m.s.Trying != protocol.TrialID{}:
		if !m.s.EndingTrial {
			m.s.EndingTrial = true
			m.emit(EndTrial{m.s.Trying})
		}
	default:
		m.s.Trying = want.TrialID
		m.emit(Try{want})
	}
}

// resumeTrial ends what is left of a trial that an earlier incarnation began.
func (m *machine) resumeTrial() {
	if m.s.Trying != (protocol.TrialID{}) {
		m.s.EndingTrial = true
		m.emit(EndTrial{m.s.Trying})
	}
}
