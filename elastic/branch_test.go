package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// TestABranchThatTheStoreLost: agents report a branch that the store lacks. An earlier coordinator had stored that branch before it sent
// it, so its number is not used again. Numbers above MaxBranch are refused.
func TestABranchThatTheStoreLost(t *testing.T) {
	s := New(1, 0, Record{Generation: 5, Phase: Running})
	report := func(branch int64) {
		Step(
			s,
			Reported{
				Pod: Pod{UID: "a"},
				Report: protocol.Report{Incarnation: 1, Ranks: 1, Generation: 5, State: protocol.StateRunning, StateBytes: 1,
					Rank: []protocol.Rank{{Sealed: []protocol.Point{{Branch: branch, Step: 9}}}}},
			},
			time.Unix(1, 0),
		)
	}
	for _, c := range []struct{ told, want int64 }{{3, 3}, {2, 3}, {protocol.MaxBranch + 1, 3}} {
		if report(c.told); s.generation.Branch != c.want {
			t.Errorf("told of branch %d: it is %d", c.told, s.generation.Branch)
		}
	}
	report(3)
	effects := Step(s, GoBack{protocol.Point{Branch: 3, Step: 9}}, time.Unix(2, 0))
	if len(s.rec().Branches) != 1 || s.rec().Branches[0].Branch != 4 {
		t.Errorf("the next branch: %+v, %+v", s.rec().Branches, effects)
	}
	s = New(1, 0, Record{Generation: 5, Phase: Running})
	report(protocol.MaxBranch) // a higher branch could not be reported
	if effects := Step(s, GoBack{protocol.Point{Branch: protocol.MaxBranch, Step: 9}}, time.Unix(3, 0)); len(s.rec().Branches) > 0 {
		t.Errorf("after the last branch: %+v, %+v", s.rec().Branches, effects)
	}
}

// TestAManifestOfABranchThatIsToCome: a report that names a manifest of a future branch is ignored. If it counted, no trained step would
// ever be newer.
func TestAManifestOfABranchThatIsToCome(t *testing.T) {
	for branch, recorded := range map[int64]bool{0: true, 1: true, 2: false, protocol.MaxBranch: false, -1: false} {
		s := New(1, time.Second, Record{Generation: 5, Branch: 1, RestoreStep: 8, Phase: Running})
		Step(
			s,
			Reported{
				Pod: Pod{UID: "a"},
				Report: protocol.Report{Incarnation: 1, Storage: true, Ranks: 1, Generation: 5, State: protocol.StateRunning, StateBytes: 1,
					Manifested: protocol.Mark{Step: 8, Generation: 5, Branch: branch}, Rank: []protocol.Rank{{}}},
			},
			time.Unix(1, 0),
		)
		if got := s.rec().Durable != nil; got != recorded {
			t.Errorf("a manifest of branch %d is recorded: %t", branch, got)
		}
	}
}

// TestGoBackToAPinnedStep: training continues from a pinned step that the record does not otherwise list only if a user requests that. A
// pinned step that is given up stays pinned.
func TestGoBackToAPinnedStep(t *testing.T) {
	pinned := func(step int64) StoredStep { return StoredStep{Mark: protocol.Mark{Step: step, Generation: 1}} }
	newest := pinned(40)
	s := New(
		1,
		time.Second,
		Record{Generation: 5, RestoreStep: 30, Durable: &newest, Kept: []StoredStep{pinned(8)}, Pinned: []StoredStep{pinned(10), pinned(20)}},
	)
	Step(
		s,
		Reported{
			Pod: Pod{UID: "a"},
			Report: protocol.Report{Incarnation: 1, Storage: true, Ranks: 1, Generation: 5, State: protocol.StateRunning, StateBytes: 1,
				Rank: []protocol.Rank{{Sealed: protocoltest.FirstBranch(45)}}},
		},
		time.Unix(1, 0),
	)
	Step(s, GoBack{protocol.Point{Step: 10}}, time.Unix(2, 0))
	if r := s.rec(); len(r.Branches) != 1 || r.Durable == nil || r.Durable.Step != 10 || r.Older == nil || r.Older.Step != 8 ||
		len(r.Pinned) != 2 {
		t.Errorf("the record names %+v, %+v, %v, %v", r.Durable, r.Older, r.Pinned, r.Branches)
	}
	if p := s.ledger.Plan(s.members.Pods(s.ledger.Line(), members.NoneLost), s.generation.Stored(), false); p.Step != 10 {
		t.Errorf("all go on from %+v", p)
	}
}
