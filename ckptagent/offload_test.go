package ckptagent

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestTheNextCopyIsExpected: a copy is expected from when a directive names it until a directive or the end of the generation takes it
// back. A coordinator that is gone takes nothing back.
func TestTheNextCopyIsExpected(t *testing.T) {
	s := New()
	s.Generation, s.Phase, s.Clean, s.Storage, s.Rank = 3, protocol.StateRunning, false, true, make([]Rank, 1)
	s.Run = protocol.Run{Number: 3, BaseRank: 4, WorldSize: 8}
	now := time.Unix(1, 0)
	for i, c := range []struct {
		e    Event
		want AwaitCopy
	}{
		{Directed{protocol.Directive{Generation: 3, Order: protocol.OrderRun, CopyNext: 9}}, AwaitCopy{9, 3, 4, 8}},
		{Contact{Up: false}, AwaitCopy{9, 3, 4, 8}},
		{Directed{protocol.Directive{Generation: 3, Order: protocol.OrderRun}}, AwaitCopy{}},
		{Directed{protocol.Directive{Generation: 3, Order: protocol.OrderRun, CopyNext: 1}}, AwaitCopy{1, 3, 4, 8}},
		{Capabilities{}, AwaitCopy{}},
	} {
		var effects []Effect
		before := s.Awaiting
		s, effects = Step(s, c.e, now)
		var got []AwaitCopy
		for _, e := range effects {
			if e, ok := e.(AwaitCopy); ok {
				got = append(got, e)
			}
		}
		if s.Awaiting != c.want || (len(got) == 1) != (before != c.want) || len(got) == 1 && got[0] != c.want {
			t.Errorf("%d: expects %+v, effects %+v; want %+v", i, s.Awaiting, got, c.want)
		}
	}
}
