package elastic

import (
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// TestLevelsCountOnlyTheNewestGeneration: an inventory that an agent reported before a generation still lists given-up steps. If it counted
// together with steps of the same numbers that other ranks sealed later, a step would seem common that is not.
func TestLevelsCountOnlyTheNewestGeneration(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	report := func(generation int64, state protocol.AgentState, steps ...int64) protocol.Report {
		return protocol.Report{
			Incarnation: 1,
			Ranks:       1,
			Address:     "10.0.0.1",
			Port:        4000,
			Generation:  generation,
			State:       state,
			StateBytes:  1,
			Rank:        []protocol.Rank{{Sealed: protocoltest.FirstBranch(steps...), Step: 6}},
		}
	}
	for name, tt := range map[string]struct {
		other []protocol.Report
		want  int64
	}{
		"runs it":                    {[]protocol.Report{report(2, protocol.StateRunning, 4, 6)}, 6},
		"has finished it":            {[]protocol.Report{report(2, protocol.StateFinished, 4, 6)}, 6},
		"has failed in it":           {[]protocol.Report{report(2, protocol.StateFailed, 4, 6)}, 6},
		"has run and halted it":      {[]protocol.Report{report(2, protocol.StateRunning, 4), report(2, protocol.StateHalted, 4, 6)}, 6},
		"has halted it, and no more": {[]protocol.Report{report(2, protocol.StateHalted, 4, 6)}, 0},
		"came back in it":            {[]protocol.Report{report(2, protocol.StateIdle, 4, 6)}, 0},
		"runs the one before":        {[]protocol.Report{report(1, protocol.StateRunning, 4, 6)}, 0},
		"halted the one before":      {[]protocol.Report{report(1, protocol.StateHalted, 4, 6)}, 0},
		"ran it, and is another pod": {[]protocol.Report{report(2, protocol.StateRunning, 4)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(2, 0, Record{Generation: 2, RestoreStep: 4, Phase: Running})
			pods := []Pod{{UID: "a", Name: "a", Created: now}, {UID: "b", Name: "b", Created: now}}
			for _, r := range tt.other {
				Step(s, Reported{Slot: 1, Pod: pods[1], Report: r}, now)
			}
			if name == "ran it, and is another pod" {
				Step(s, Reported{Slot: 0, Pod: pods[0], Report: report(2, protocol.StateRunning, 4)}, now)
				pods[1] = Pod{UID: "c", Name: "b", Created: now.Add(time.Second)}
				Step(s, Reported{Slot: 1, Pod: pods[1], Report: report(2, protocol.StateHalted, 4, 6)}, now)
			}
			Step(s, Reported{Slot: 0, Pod: pods[0], Report: report(2, protocol.StateRunning, 4, 6)}, now)
			if d := s.Directive(0, "a"); d.CommonStep != tt.want {
				t.Errorf("common %d, want %d", d.CommonStep, tt.want)
			}
		})
	}
}

// TestCountsAreStoredRarely: a rising count of optimizer steps is stored every 30 s, and once after it has stopped rising. The first count,
// and the first known resume point, are stored at once.
func TestCountsAreStoredRarely(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	s := New(1, 0, Record{Generation: 2, Phase: Running, StartedAt: t0})
	pod := Pod{UID: "a", Name: "a", Created: t0}
	tell := func(at int, steps int64, known bool) int {
		r := protocol.Report{Incarnation: 1, Ranks: 1, Address: "10.0.0.1", Port: 4000, Generation: 2, State: protocol.StateRunning,
			Rank: []protocol.Rank{{OptimizerSteps: steps, ResumeKnown: known, ResumedAt: 7}}}
		n := 0
		for _, e := range Step(s, Reported{Pod: pod, Report: r}, t0.Add(time.Duration(at)*time.Second)) {
			if _, ok := e.(PersistLater); ok {
				n++
			}
		}
		return n
	}
	tell(0, 0, false)
	stored := []int{}
	for at := 1; at <= 100; at++ {
		if tell(at, int64(min(at, 80)), at >= 11) > 0 {
			stored = append(stored, at)
		}
	}
	if want := []int{1, 11, 41, 71, 101}; !slices.Equal(append(stored, tell(101, 80, true)*101), want) {
		t.Errorf("stored at %v, want %v", stored, want)
	}
	if p := s.Snapshot().Progress; p.OptimizerSteps != 80 || tell(200, 80, true) != 0 {
		t.Errorf("the record says %d optimizer steps, and what does not change is stored", p.OptimizerSteps)
	}
}
