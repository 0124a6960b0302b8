package ckptagent

import (
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// idle is an agent whose launcher waits for its first generation.
func idle(t *testing.T) State {
	t.Helper()
	s, _ := Step(New(), Resumed{SameContainer: true}, time.Unix(1, 0))
	s, _ = Step(s, Launched{ID: "a", Ranks: 2}, time.Unix(1, 0))
	s, _ = Step(s, Inventoried{}, time.Unix(1, 0))
	return s
}

func wants(round, attempt int) Directed {
	id := protocol.TrialID{Check: 1, Round: round, Attempt: attempt}
	return Directed{protocol.Directive{Order: protocol.OrderWait, Trial: protocol.Trial{TrialID: id, WorldSize: 2}}}
}

func tried(round, attempt int, outcome protocol.TrialOutcome) Tried {
	return Tried{protocol.TrialAnswer{TrialID: protocol.TrialID{Check: 1, Round: round, Attempt: attempt}, Outcome: outcome}}
}

func trials(effects []Effect) (began, ended int) {
	for _, e := range effects {
		switch e.(type) {
		case Try:
			began++
		case EndTrial:
			ended++
		}
	}
	return began, ended
}

// TestTrialOnce: a trial that is wanted is made once, and its answer stays.
func TestTrialOnce(t *testing.T) {
	s, effects := Step(idle(t), wants(0, 1), time.Unix(2, 0))
	if began, _ := trials(effects); began != 1 {
		t.Fatalf("effects %v", effects)
	}
	for _, e := range []Event{wants(0, 1), tried(0, 1, protocol.TrialPassed), wants(0, 1), Tick{}} {
		if s, effects = Step(s, e, time.Unix(3, 0)); !slices.Equal([]int{0, 0}, both(trials(effects))) {
			t.Fatalf("%T: effects %v", e, effects)
		}
	}
	if len(s.Answers) != 1 || s.Answers[0].Outcome != protocol.TrialPassed || s.Trying != (protocol.TrialID{}) {
		t.Errorf("state %+v", s.Checking)
	}
	if s, effects = Step(s, wants(0, 2), time.Unix(4, 0)); len(effects) == 0 {
		t.Error("another attempt was not made")
	}
	if s, _ = Step(s, tried(0, 2, protocol.TrialFailed), time.Unix(5, 0)); len(s.Answers) != 1 || s.Answers[0].Attempt != 2 {
		t.Errorf("answers %+v", s.Answers)
	}
}

// TestNoRankBesideTrial: a generation that is wanted ends the trial, and begins after its end.
func TestNoRankBesideTrial(t *testing.T) {
	s, _ := Step(idle(t), wants(0, 1), time.Unix(2, 0))
	run := protocol.Run{Number: 1, WorldSize: 2, Nodes: 1}
	s, effects := Step(s, Directed{protocol.Directive{Generation: 1, Order: protocol.OrderRun, Run: run}}, time.Unix(3, 0))
	if _, ended := trials(effects); ended != 1 || started(effects) {
		t.Fatalf("effects %v", effects)
	}
	_, effects = Step(s, tried(0, 1, protocol.TrialLost), time.Unix(4, 0))
	if !started(effects) {
		t.Errorf("effects %v", effects)
	}
}

// TestTrialLostWithAgent: the next incarnation ends the processes of a trial, answers that it is lost, and makes it again on order.
func TestTrialLostWithAgent(t *testing.T) {
	s, _ := Step(idle(t), wants(1, 1), time.Unix(2, 0))
	s, effects := Step(State{Durable: s.Stored()}, Resumed{SameContainer: true}, time.Unix(3, 0))
	if _, ended := trials(effects); ended != 1 {
		t.Fatalf("effects %v", effects)
	}
	s, _ = Step(s, tried(1, 1, protocol.TrialLost), time.Unix(4, 0))
	if len(s.Answers) != 1 || s.Answers[0].Outcome != protocol.TrialLost {
		t.Errorf("answers %+v", s.Answers)
	}
}

func both(a, b int) []int { return []int{a, b} }

func started(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { _, ok := e.(Start); return ok })
}

// TestTimesOfTrial: imports have their own time, and waiting for other ranks is not counted. What is killed in them is no finding.
func TestTimesOfTrial(t *testing.T) {
	trial := protocol.Trial{Imports: 20 * time.Second, Within: 10 * time.Second}
	for _, c := range []struct {
		part            string
		started, inPart int
		overdue         bool
		outcome         protocol.TrialOutcome
	}{
		{"", 19, 19, false, protocol.TrialLate},
		{"import", 19, 19, false, protocol.TrialLate},
		{"import", 21, 21, true, protocol.TrialLate},
		{"device", 25, 5, false, protocol.TrialFailed},
		{"matmul", 12, 11, true, protocol.TrialFailed},
		{"meet", 29, 28, false, protocol.TrialAbsent},
		{"meet", 31, 5, true, protocol.TrialAbsent},
		{"exchange", 31, 2, true, protocol.TrialFailed},
	} {
		s := Said{Part: c.part}
		if got := s.Overdue(trial, time.Duration(c.started)*time.Second, time.Duration(c.inPart)*time.Second); got != c.overdue {
			t.Errorf("%+v: overdue %v", c, got)
		}
		if a := JudgeTrial(trial, []Said{s}); a.Outcome != c.outcome {
			t.Errorf("%+v: %+v", c, a)
		}
	}
}
