package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestAdvancePanicsWhereThePhaseDoesNotSettle: if phases change without end, Step panics. Otherwise agents would keep the orders of an
// earlier phase.
func TestAdvancePanicsWhereThePhaseDoesNotSettle(t *testing.T) {
	for most, want := range map[int]bool{1: true, 2: false, maxTransitions: false} {
		s, now := New(1, 0, Record{}), time.Unix(1, 0)
		r := protocol.Report{Incarnation: 1, Ranks: 1, Address: "10.0.0.1", Port: 4000, State: protocol.StateIdle}
		s.members.Take(0, Pod{UID: "a"}, &r, 0, now)
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != want || s.Record.Phase != Running {
					t.Errorf("at most %d transitions: %s, panicked: %t", most, s.Record.Phase, panicked)
				}
			}()
			s.advance(most, now)
		}()
	}
}
