package ckptagent

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// The end of a terminating pod. It has its grace period from TerminatingAt on; then the kubelet kills it:
//
//	TerminatingAt ── trains on ──▶ StopBy ── ranks end, within gentle ──▶ ── waits to be released ──▶ ReleaseBy ── exitMargin ──▶ killed
//
//	StopBy = TerminatingAt + grace − ShutdownMargin
//	ranks end by TerminatingAt + grace − ShutdownMargin/2
//	ReleaseBy = TerminatingAt + grace − exitMargin
//
// It trains on until the coordinator halts it, early enough to copy its state (elastic/replacements/deadline.go). Without a coordinator
// each stage ends early.
const (
	// stopTimeout is how long a terminating pod trains on without a coordinator. copyTimeout is the same if a coordinator that returns in
	// time could have the state copied: a dead one is replaced within its lease, 15 s, and some seconds.
	stopTimeout = 5 * time.Second
	copyTimeout = 20 * time.Second
	// releaseTimeout is how long a terminating pod that has stopped training waits for a coordinator: unless the pod is released from its
	// Job first, its end counts as a failure of the Job, which may not tolerate one.
	releaseTimeout = time.Minute
	// exitMargin is the rest of the grace period in which such a pod exits instead of being killed.
	exitMargin = 2 * time.Second
	// haltGentle is how long ranks of a terminating pod may take to end while the whole gang waits for their state to be copied. heldGentle
	// is the same in a pod that stays and holds the state of all its ranks in memory: a SIGTERM handler has nothing more to save.
	haltGentle = 5 * time.Second
	heldGentle = 2 * time.Second
	// launcherTimeout is how long a signal that only the launcher reported waits for the pod's own: the kubelet signals both.
	launcherTimeout = time.Second
)

// Shutdown is the state of the end of a terminating pod.
type Shutdown struct {
	// Terminating: the pod is being shut down, by this signal.
	Terminating bool `json:"terminating,omitempty"`
	Signal      int  `json:"signal,omitempty"`
	// ByLauncher: only the launcher received the signal.
	ByLauncher bool `json:"byLauncher,omitempty"`
	// TerminatingAt is when the pod received SIGTERM, StopBy the latest time at which it stops training, ReleaseBy until when it then waits
	// to be released from its Job; zero: it does not wait.
	TerminatingAt time.Time `json:"terminatingAt,omitzero"`
	StopBy        time.Time `json:"stopBy,omitzero"`
	ReleaseBy     time.Time `json:"releaseBy,omitzero"`
}

// Signalled reports that the pod is being shut down or, if only the Launcher received the signal, that a process in the pod ends it.
type Signalled struct {
	Signal   int
	Launcher bool
}

// LauncherGone reports that the launcher died before the agent returned its exit code.
type LauncherGone struct{}

// Contact reports whether the agent is connected to the coordinator.
type Contact struct{ Up bool }

// DetachedFromJob reports that the pod's end is no failure of its Job: the pod was released from it, or the Job is over.
type DetachedFromJob struct{}

func (e Signalled) apply(m *machine) {
	grace := m.s.grace()
	timeout, stay := grace-protocol.ShutdownMargin(grace), grace-exitMargin
	switch {
	case m.s.Terminating && (e.Launcher || !m.s.ByLauncher):
		return
	case m.s.Terminating: // the pod's own signal, after that of its launcher
		m.s.ByLauncher = false
	default:
		m.s.Shutdown = Shutdown{Terminating: true, Signal: e.Signal, ByLauncher: e.Launcher, TerminatingAt: m.now}
	}
	if e.Launcher {
		timeout = min(timeout, launcherTimeout)
		stay = timeout // no controller knows of it, so none releases the pod from its Job
	}
	m.s.StopBy, m.s.ReleaseBy = m.s.TerminatingAt.Add(timeout), m.s.TerminatingAt.Add(stay)
}

func (e LauncherGone) apply(m *machine) {
	if m.s.Returned != nil || m.s.Terminating && !m.s.ByLauncher { // a shutdown ends launchers
		return
	}
	m.s.Shutdown = Shutdown{Terminating: true, Signal: sigkill, TerminatingAt: m.s.TerminatingAt}
}

func (e Contact) apply(m *machine) {
	switch {
	case e.Up:
		m.s.DisconnectedSince, m.s.DetachedFromJob = time.Time{}, false
	case m.s.DisconnectedSince.IsZero():
		m.s.DisconnectedSince = m.now
	}
}

func (DetachedFromJob) apply(m *machine) { m.s.DetachedFromJob = true }

// disconnectedFor returns how long there has been no connection to a coordinator.
func (s State) disconnectedFor(now time.Time) time.Duration {
	if s.DisconnectedSince.IsZero() {
		return 0
	}
	return now.Sub(s.DisconnectedSince)
}

// grace returns the whole grace period of a terminating pod.
func (s State) grace() time.Duration {
	return cmp.Or(s.Grace, protocol.DefaultGrace)
}

// shouldStop reports whether a terminating pod ends its ranks now.
func (s State) shouldStop(now time.Time) bool {
	if s.Whole {
		return true // no state can be copied, and its SIGTERM handler needs all of the grace period
	}
	return s.Clean || s.Ending || s.DetachedFromJob || s.haltWanted() || !now.Before(s.StopBy) || s.coordinatorTimeout(now)
}

// coordinatorTimeout reports whether a terminating pod stops waiting for a coordinator and ends its ranks.
func (s State) coordinatorTimeout(now time.Time) bool {
	if s.copyable() {
		return s.disconnectedFor(now) >= copyTimeout
	}
	return s.disconnectedFor(now) >= stopTimeout // only the script can save its state, and may need all of the grace period
}

// copyable reports whether a coordinator could have the ranks' state copied.
func (s State) copyable() bool {
	return s.Storage && s.held()
}

// awaitRelease reports whether a terminating pod that has halted waits to be released from its Job.
func (s State) awaitRelease(now time.Time) bool {
	// a coordinator that was away for long before may be back just in time
	disconnected := min(s.disconnectedFor(now), now.Sub(s.TerminatingAt))
	return !s.DetachedFromJob && now.Before(s.ReleaseBy) && disconnected < releaseTimeout
}

// gentle returns how long the ranks of a terminating pod have to end after SIGTERM.
func (s State) gentle(now time.Time) time.Duration {
	grace := s.grace()
	if s.TerminatingAt.IsZero() {
		return grace - protocol.ShutdownMargin(grace)/2 // the launcher is gone, so no time is set
	}
	left := s.TerminatingAt.Add(grace).Sub(now) - protocol.ShutdownMargin(grace)/2
	if s.Whole {
		return max(left, 0)
	}
	if s.copyable() && (s.haltWanted() || s.disconnectedFor(now) >= copyTimeout) {
		left = min(left, haltGentle) // the state in memory must still be copied
	}
	return max(left, 0)
}

// haltTime returns how long ranks of a pod that stays have to end: the launcher's shutdown timeout and, if another pod of the gang is
// terminating, at least that pod's, because a script may save collectively.
func (s State) haltTime() End {
	if s.held() {
		return End{Within: heldGentle}
	}
	end := End{ByLauncher: true}
	if s.haltWanted() {
		end.Within = s.Want.HaltWithin
	}
	return end
}

// answersHalt reports whether a rank ended because the agent sent SIGTERM: exit code and exception of its handler are no failure.
func (s State) answersHalt(e Exited) bool {
	return e.Signal == 0 && s.haltedBefore(e.At) && (e.Traceback == "" || s.haltedBefore(e.TracebackAt))
}

// haltedBefore reports whether the ranks of a pod that stays were being ended before a time.
func (s State) haltedBefore(at time.Time) bool {
	return s.Ending && !s.Terminating && !at.IsZero() && at.After(s.EndingSince)
}

// held reports whether all state of the ranks is in memory.
func (s State) held() bool { return s.every(func(r Rank) bool { return len(r.Sealed) > 0 }) }

// terminationCode returns the exit code of a terminating pod: that of its command, as without Holdfast, if the command is a rank and was
// not killed.
func (s State) terminationCode() int {
	if s.Whole && len(s.Rank) > 0 {
		e := s.Rank[0].Exit
		if s.Run.Number == 0 {
			e = s.Command.Exit
		}
		if e != nil && e.Signal != sigkill {
			return e.Code
		}
	}
	return 128 + s.Signal
}

// terminate ends the ranks of a terminating pod, with time for their handlers. Then it waits for the order to exit, which comes once the
// pod is released from its Job, so that its end is no failure of that Job; at most until ReleaseBy.
func (m *machine) terminate() {
	halted := m.s.haltWanted()
	if halted {
		m.abandon()
		if !m.s.abandoned() {
			return
		}
	}
	m.settle(true)
	switch {
	case !m.s.settled():
		return
	case halted:
		m.s.Generation, m.s.Phase = m.s.Want.Generation, protocol.StateHalted
	case m.s.Phase == protocol.StateRunning || m.s.Phase == protocol.StateFailed:
		m.s.Phase = protocol.StateHalted
	}
	if m.s.awaitRelease(m.now) {
		return
	}
	if (m.s.Launcher != "" || m.s.Whole) && m.s.Returned == nil {
		m.returnLauncher(m.s.terminationCode(), "")
	}
}
