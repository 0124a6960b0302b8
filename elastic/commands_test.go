package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestLateLaunchersAreBounded: a gang whose launcher comes late, and whose container ends before the next generation can begin, again
// and again, is given up. Neither counts as a failure at first.
func TestLateLaunchersAreBounded(t *testing.T) {
	s, now, seq := New(1, 0, Record{}), time.Unix(1_700_000_000, 0), uint64(0)
	report := func(containers int, state protocol.AgentState, ranks int, whole bool) {
		seq++
		now = now.Add(time.Second)
		r := protocol.Report{Incarnation: uint64(containers), Containers: uint64(containers), Sequence: seq, Address: "a", Port: 1, State: state,
			Generation: s.Record.Generation, Ranks: ranks, Rank: make([]protocol.Rank, ranks), WholeCommand: whole}
		if state == protocol.StateHalted && !whole {
			r.LeftForLauncher = s.Record.Generation
		}
		for _, f := range Step(s, Reported{Pod: Pod{UID: "u", Name: "p", Created: time.Unix(1, 0)}, Report: r}, now) {
			if p, ok := f.(Persist); ok {
				Step(s, Stored{Revision: p.Revision, Generation: p.Record.Generation, Verdict: p.Record.Verdict != nil}, now)
			}
		}
	}
	round := 1
	for ; s.Record.Verdict == nil; round++ {
		if round > 100 {
			t.Fatalf("generation %d, %d restarts", s.Record.Generation, s.Record.Restarts)
		}
		report(round, protocol.StateHalted, 1, true)
		report(round, protocol.StateRunning, 1, true)
		report(round, protocol.StateHalted, 0, false)
		if free := min(round, excusedInARow); s.Record.Verdict == nil && s.Record.Restarts != round-free {
			t.Fatalf("%d restarts after %d late launchers", s.Record.Restarts, round)
		}
	}
	if v := s.Record.Verdict; v.Reason != ReasonNoProgress || round < RestartsWithoutProgress {
		t.Fatalf("verdict %+v in round %d", v, round)
	}
}
