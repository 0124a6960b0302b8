package elastic

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// trials lets the pods report, and answer the trials that they are to make, until the end or until none is wanted.
func (s *stage) trials(end time.Time, what []string) {
	for s.now.Before(end) && s.state.Record.Phase == Forming {
		s.now = s.now.Add(min(time.Second, end.Sub(s.now)))
		if f := s.state.run.forming; f.nodes.waits {
			s.step(NodesKnown{})
		}
		asked := []string{}
		for i, p := range s.pods {
			if what[i] == "-" {
				continue
			}
			if t := s.state.Directive(Slot(i), p.UID).Trial; t.TrialID != (protocol.TrialID{}) {
				asked = append(asked, fmt.Sprintf("%d (round %d)", i, t.Round))
				s.answerTrial(i, t, what)
			}
			s.reports[i].Sequence++
			r := s.reports[i]
			r.Trials, r.Rank = slices.Clone(r.Trials), slices.Clone(r.Rank)
			s.step(Reported{Slot: Slot(i), Pod: p, Report: r})
		}
		if len(asked) > 0 {
			s.sayf("  tried: %s", strings.Join(asked, ", "))
		}
	}
}

func (s *stage) answerTrial(i int, t protocol.Trial, what []string) {
	out := map[string]protocol.TrialOutcome{
		"passed": protocol.TrialPassed, "failed": protocol.TrialFailed, "wrong": protocol.TrialWrong, "lost": protocol.TrialLost,
	}
	outcome := out[what[i]]
	for k, p := range s.pods {
		if p.UID == t.Partner && what[k] != "passed" {
			outcome = out[what[k]]
		}
	}
	r := &s.reports[i]
	r.Trials = slices.DeleteFunc(slices.Clone(r.Trials), func(a protocol.TrialAnswer) bool { return a.Round == t.Round })
	r.Trials = append(r.Trials, protocol.TrialAnswer{TrialID: t.TrialID, Outcome: outcome, Text: "planted"})
}
