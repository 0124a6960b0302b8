package ckptagent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Checking is the state of node checks. Directive.Trial is a level: the trial that is wanted is answered once, and the newest answer of
// each round stays in reports until another check begins. No rank runs beside a trial.
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
	if t.TrialID == (protocol.TrialID{}) || s.Want.Order == protocol.OrderRun || s.Want.Order == protocol.OrderExit {
		return protocol.Trial{}
	}
	if !s.startable() || s.Whole || !s.settled() {
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

// Said is what the check process of one local rank said, and how it ended.
type Said struct {
	// Outcome is in its last line, "": it wrote none. Part is the part that it began last, Last the last line of other output.
	Outcome    protocol.TrialOutcome
	Text       string
	Speed      float64
	Model      string
	Backend    string
	Part, Last string
	// Failed is why it was not started, or could not be ended. Exit is nil if it was killed.
	Failed string
	Exit   *protocol.Exit
}

// severity orders outcomes of the ranks of one pod: the pod answers the most severe one.
var severity = []protocol.TrialOutcome{
	protocol.TrialPassed, protocol.TrialAbsent, protocol.TrialLate, protocol.TrialLost, protocol.TrialFailed, protocol.TrialWrong,
}

// JudgeTrial returns the answer of a pod from what the processes of its local ranks said. The slowest rank's speed counts.
func JudgeTrial(t protocol.Trial, ranks []Said) protocol.TrialAnswer {
	a := protocol.TrialAnswer{TrialID: t.TrialID, Outcome: protocol.TrialPassed}
	for local, said := range ranks {
		outcome, text := said.outcome(t)
		if slices.Index(severity, outcome) > slices.Index(severity, a.Outcome) {
			a.Outcome, a.Text = outcome, fmt.Sprintf("local rank %d: %s", local, text)
		}
		if a.Speed == 0 || said.Speed > 0 && said.Speed < a.Speed {
			a.Speed = said.Speed
		}
		a.Model, a.Backend = said.Model, said.Backend
	}
	if a.Outcome != protocol.TrialPassed {
		a.Speed = 0
	}
	a.Text = strings.ToValidUTF8(a.Text[:min(len(a.Text), protocol.MaxTrialText)], "")
	return a
}

// PartImport and partMeet are the parts of holdfast_check.py whose time speaks against no node: imports, and waiting for other ranks.
const PartImport, partMeet = "import", "meet"

func (s Said) importing() bool { return s.Part == "" || s.Part == PartImport }

// Overdue reports whether the process, which started so long ago and began its present part so long ago, must be killed.
func (s Said) Overdue(t protocol.Trial, started, part time.Duration) bool {
	switch {
	case s.importing():
		return started > t.Imports
	case s.Part == partMeet:
		return started > t.Imports+t.Within
	default:
		return part > t.Within || started > t.Imports+t.Within
	}
}

// outcome returns how the trial of one rank ended, and what failed.
func (s Said) outcome(t protocol.Trial) (protocol.TrialOutcome, string) {
	in := "part " + cmp.Or(s.Part, "start")
	switch {
	case s.Failed != "":
		return protocol.TrialFailed, s.Failed
	case slices.Contains(severity, s.Outcome):
		return s.Outcome, s.Text
	case s.Exit != nil && s.Exit.Signal != 0:
		return protocol.TrialFailed, fmt.Sprintf("%s: signal %d ended the process: %s", in, s.Exit.Signal, strings.TrimSpace(s.Last))
	case s.Exit != nil:
		return protocol.TrialFailed, fmt.Sprintf("%s: the process ended with exit code %d: %s", in, s.Exit.Code, strings.TrimSpace(s.Last))
	case s.importing():
		return protocol.TrialLate, fmt.Sprintf("%s did not end within %s", in, t.Imports)
	case s.Part == partMeet:
		return protocol.TrialAbsent, fmt.Sprintf("other ranks did not come within %s", t.Imports+t.Within)
	default:
		return protocol.TrialFailed, fmt.Sprintf("%s did not end within %s, and the process had to be killed", in, t.Within)
	}
}
