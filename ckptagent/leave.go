package ckptagent

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// exitBarrier is how long a launcher whose ranks have all ended well waits for those of the other pods, as torchrun's agents do for one
	// another (exit_barrier_timeout).
	exitBarrier = 300 * time.Second
	// abandonedAfter is how long a rank that has failed, and what runs beside it, wait for a coordinator that is away.
	abandonedAfter = 10 * time.Minute
)

// leaves reports whether what runs here ends by itself, with no order: a whole command that has ended well, a launcher that
// has waited for the others as long as torchrun does, and failed ranks to which no coordinator says what is to become of them.
func (s State) leaves(now time.Time) bool {
	switch {
	case s.Terminating:
		return false
	case s.Phase == protocol.StateFinished && s.Whole:
		return true
	case s.haltWanted():
		return false
	case s.Phase == protocol.StateFinished:
		return now.Sub(s.lastExit()) >= exitBarrier
	}
	failure := s.firstFailure()
	return s.Phase == protocol.StateFailed && failure != nil && min(s.disconnectedFor(now), now.Sub(failure.At)) >= abandonedAfter
}

// lastExit is when the newest rank ended by itself.
func (s State) lastExit() (at time.Time) {
	for _, r := range s.Rank {
		if r.Exit != nil && r.Exit.At.After(at) {
			at = r.Exit.At
		}
	}
	return at
}

// firstFailure is how the rank of this pod ended that failed first; nil: none has failed.
func (s State) firstFailure() (first *protocol.Exit) {
	for _, r := range s.Rank {
		if e := r.Exit; e != nil && e.Code != 0 && (first == nil || e.At.Before(first.At)) {
			first = e
		}
	}
	return first
}

// leave ends what is left here, and then the launcher, or the container of a whole command, with 0 or the code of the rank that failed.
func (m *machine) leave() {
	code := 0
	if e := m.s.firstFailure(); e != nil {
		code = e.Code
	}
	if m.s.Whole {
		m.s.Concluded = &Returned{Code: code}
		m.endConcluded()
		return
	}
	if m.clear(false); m.s.Clean {
		m.returnLauncher(code, "")
	}
}
