//go:build linux

package proc

import (
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestMarksOfTrials: ending the processes of one trial leaves those of another, and ranks.
func TestMarksOfTrials(t *testing.T) {
	mark := "marks-of-trials"
	one := protocol.TrialID{Check: 1, Round: 1, Attempt: 1, Partner: "a"}
	begin := func(m string) Process {
		p := sh(t, "exec sleep 100", EnvMark+"="+m)
		t.Cleanup(func() { EndAll(m, []Process{p}, nil, 0) })
		return p
	}
	ended, others := begin(CheckMark(mark, one)), []Process{begin(mark)}
	for _, change := range []func(*protocol.TrialID){
		func(id *protocol.TrialID) { id.Check++ }, func(id *protocol.TrialID) { id.Round++ },
		func(id *protocol.TrialID) { id.Attempt++ }, func(id *protocol.TrialID) { id.Partner = "b" },
	} {
		other := one
		change(&other)
		others = append(others, begin(CheckMark(mark, other)))
	}
	EndAll(CheckMark(mark, one), nil, nil, 0)
	if ended.Alive() {
		t.Error("the process of the trial was not ended")
	}
	for i, p := range others {
		if !p.Alive() {
			t.Errorf("process %d of something else was ended", i)
		}
	}
}
