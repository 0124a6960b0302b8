package ckptagent

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// exitBarrier is how long a launcher whose ranks have all succeeded waits for those of the other pods, like torchrun's agents
	// (exit_barrier_timeout). It waits as long again for a step that is being copied to storage.
	exitBarrier = 300 * time.Second
	// abandonedAfter is how long a pod waits for an absent coordinator once a rank has failed, and how long a launcher or a whole command
	// without running ranks waits for a generation: torchrun's rendezvous has the same timeout (join_timeout).
	abandonedAfter = 10 * time.Minute
	// exitUnmet is torchrun's exit code after a failed rendezvous.
	exitUnmet = 1
)

// leaves reports whether the pod ends without an order: its whole command has succeeded, its launcher has waited for the others as long as
// torchrun does, or its ranks have failed, were halted, or were never started and no coordinator gives an order.
func (s State) leaves(now time.Time) bool {
	switch {
	case s.Terminating:
		return false
	case s.Phase == protocol.StateFinished && s.Whole:
		return true
	case !s.WaitsSince.IsZero() && min(s.disconnectedFor(now), now.Sub(s.WaitsSince)) >= abandonedAfter:
		return true
	case s.haltWanted():
		return false
	case s.Phase == protocol.StateFinished:
		waited := now.Sub(s.lastExit())
		if s.Want.Order == protocol.OrderNone { // this incarnation has not received whether the gang goes on
			waited = min(waited, s.disconnectedFor(now))
		}
		return waited >= 2*exitBarrier || waited >= exitBarrier && !s.storing()
	}
	failure := s.firstFailure()
	return s.Phase == protocol.StateFailed && failure != nil && min(s.disconnectedFor(now), now.Sub(failure.At)) >= abandonedAfter
}

// storing reports whether this pod's part of a step, or a manifest, is being written to storage.
func (s State) storing() bool {
	copied := func(r Rank) bool { return r.Copied.Mark == s.Copying }
	return s.Copying != (protocol.Mark{}) && !s.every(copied) || s.Manifesting != (protocol.Mark{}) && s.Manifesting != s.Manifested
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

// firstFailure returns the exit of this pod's rank that failed first; nil: none has failed.
func (s State) firstFailure() (first *protocol.Exit) {
	for _, r := range s.Rank {
		if e := r.Exit; e != nil && e.Code != 0 && (first == nil || e.At.Before(first.At)) {
			first = e
		}
	}
	return first
}

// waits reports whether a launcher or a whole command without running ranks waits for a generation.
func (s State) waits() bool {
	served := s.Launcher != "" || s.Whole && !s.provisional()
	return served && s.Clean && s.Phase != protocol.StateFinished && s.Returned == nil && s.Concluded == nil
}

// noteWait records since when it waits.
func (m *machine) noteWait() {
	switch waits := m.s.waits(); {
	case !waits:
		m.s.WaitsSince = time.Time{}
	case m.s.WaitsSince.IsZero():
		m.s.WaitsSince = m.now
	}
}

// leave ends the remaining processes, then the launcher, or a whole command's container: with 0 if all ranks have succeeded, else with the
// code of the failed rank or of a failed rendezvous.
func (m *machine) leave() {
	code := 0
	if m.s.Phase != protocol.StateFinished {
		code = exitUnmet
	}
	if e := m.s.firstFailure(); e != nil {
		code = e.Code
	}
	if !m.s.WaitsSince.IsZero() {
		m.emit(Notice{fmt.Sprintf("no generation has begun, and no coordinator was reached, for %s: the command ends with %d, as where torchrun's rendezvous fails", abandonedAfter, code)})
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
