package ckptagent

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// The end of a terminating pod. From TerminatingAt on it has its grace, at the end of which the kubelet kills it:
//
//	TerminatingAt ── trains on ──▶ StopBy ── ranks end, within gentle ──▶ ── waits to be released ──▶ ReleaseBy ── exitMargin ──▶ killed
//
//	StopBy = TerminatingAt + grace − ShutdownMargin
//	ranks end by TerminatingAt + grace − ShutdownMargin/2
//	ReleaseBy = TerminatingAt + grace − exitMargin
//
// It trains on for as long as the coordinator wants it to, which halts it in time to have its state copied (elastic/deadline.go).
// Each stage is over early where nobody is there to wait for.
const (
	// stopTimeout is how long a terminating pod trains on without a coordinator. copyTimeout is the same where a
	// coordinator that returns in time could have its state copied: one that died is replaced within its lease, 15 s,
	// and some seconds.
	stopTimeout = 5 * time.Second
	copyTimeout = 20 * time.Second
	// releaseTimeout is how long a terminating pod that has stopped training waits for a coordinator: unless the pod is
	// released from its Job first, its end counts as a failure of the Job, which may not be allowed any.
	releaseTimeout = time.Minute
	// exitMargin is what is left of the grace when such a pod exits by itself instead of being killed.
	exitMargin = 2 * time.Second
	// haltGentle is how long ranks of a terminating pod may take to end while the whole gang waits for them to have their state copied,
	// heldGentle the same in a pod that stays and holds the state of all its ranks: what a handler of SIGTERM could save is there already.
	haltGentle = 5 * time.Second
	heldGentle = 2 * time.Second
	// launcherTimeout is how long a signal that only the launcher reported waits for the pod's own: the kubelet signals
	// both.
	launcherTimeout = time.Second
)

// Shutdown is what is known of the end of a terminating pod.
type Shutdown struct {
	// Terminating: the pod is being shut down, by this signal.
	Terminating bool `json:"terminating,omitempty"`
	Signal      int  `json:"signal,omitempty"`
	// ByLauncher: only the launcher received the signal.
	ByLauncher bool `json:"byLauncher,omitempty"`
	// TerminatingAt is when the pod received SIGTERM, StopBy when it stops training at the latest, ReleaseBy how long it then waits
	// to be released from its Job; zero: at once.
	TerminatingAt time.Time `json:"terminatingAt,omitzero"`
	StopBy        time.Time `json:"stopBy,omitzero"`
	ReleaseBy     time.Time `json:"releaseBy,omitzero"`
}

// Signalled says that the pod is being shut down; or, if only the Launcher received the signal, that a process in the pod ends it.
type Signalled struct {
	Signal   int
	Launcher bool
}

// LauncherGone says that the launcher died before the agent returned its exit code.
type LauncherGone struct{}

// Contact reports whether the agent is connected to the coordinator.
type Contact struct{ Up bool }

// DetachedFromJob says that the pod's end is no failure of its Job: the pod was released from it, or the Job is over.
type DetachedFromJob struct{}

func (e Signalled) apply(m *machine) {
	grace := m.s.grace()
	timeout, stay := grace-protocol.ShutdownMargin(grace), grace-exitMargin
	switch {
	case m.s.Terminating && (e.Launcher || !m.s.ByLauncher):
		return
	case m.s.Terminating: // the pod's own signal, behind that of its launcher
		m.s.ByLauncher = false
	default:
		m.s.Shutdown = Shutdown{Terminating: true, Signal: e.Signal, ByLauncher: e.Launcher, TerminatingAt: m.now}
	}
	if e.Launcher {
		timeout = min(timeout, launcherTimeout)
		stay = timeout // nobody knows of it, so nobody takes the pod out of its Job
	}
	m.s.StopBy, m.s.ReleaseBy = m.s.TerminatingAt.Add(timeout), m.s.TerminatingAt.Add(stay)
}

func (e LauncherGone) apply(m *machine) {
	if m.s.Returned != nil || m.s.Terminating && !m.s.ByLauncher { // shutting down does that to launchers
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

// disconnectedFor returns how long there has been no coordinator.
func (s State) disconnectedFor(now time.Time) time.Duration {
	if s.DisconnectedSince.IsZero() {
		return 0
	}
	return now.Sub(s.DisconnectedSince)
}

// grace returns how long a terminating pod has in all.
func (s State) grace() time.Duration {
	return cmp.Or(s.Grace, protocol.DefaultGrace)
}

// shouldStop reports whether a terminating pod ends what runs now.
func (s State) shouldStop(now time.Time) bool {
	if s.Whole {
		return true // nothing of it could be copied, and what it does about the signal needs all of the grace
	}
	return s.Clean || s.Ending || s.DetachedFromJob || s.haltWanted() || !now.Before(s.StopBy) || s.coordinatorTimeout(now)
}

// coordinatorTimeout reports whether a terminating pod no longer waits for a coordinator before it ends what runs.
func (s State) coordinatorTimeout(now time.Time) bool {
	if s.copyable() {
		return s.disconnectedFor(now) >= copyTimeout
	}
	return s.disconnectedFor(now) >= stopTimeout // nobody could save more than the script itself, which may want all of its grace for that
}

// copyable reports whether a coordinator could have the ranks' state copied.
func (s State) copyable() bool {
	return s.Storage && s.held()
}

// awaitRelease reports whether a terminating pod that has halted waits to be released from its Job.
func (s State) awaitRelease(now time.Time) bool {
	// who could do it may have been away for long before: it may be back just in time
	disconnected := min(s.disconnectedFor(now), now.Sub(s.TerminatingAt))
	return !s.DetachedFromJob && now.Before(s.ReleaseBy) && disconnected < releaseTimeout
}

// gentle returns how long the ranks of a terminating pod may take to end by themselves.
func (s State) gentle(now time.Time) time.Duration {
	grace := s.grace()
	if s.TerminatingAt.IsZero() {
		return grace - protocol.ShutdownMargin(grace)/2 // the launcher is gone; nobody has set a time
	}
	left := s.TerminatingAt.Add(grace).Sub(now) - protocol.ShutdownMargin(grace)/2
	if s.Whole {
		return max(left, 0)
	}
	if s.copyable() && (s.haltWanted() || s.disconnectedFor(now) >= copyTimeout) {
		left = min(left, haltGentle) // what is in memory is to be copied yet
	}
	return max(left, 0)
}

// haltTime is how long ranks of a pod that stays may take to end: as long as the launcher gives them, and where another pod of the gang is
// terminating as long as that one has, because a script may save together.
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

// answersHalt reports whether a rank ended because the agent asked it to: how a handler of SIGTERM ends, and what it raises, tells of no
// failure.
func (s State) answersHalt(e Exited) bool {
	return e.Signal == 0 && s.haltedBefore(e.At) && (e.Traceback == "" || s.haltedBefore(e.TracebackAt))
}

// haltedBefore reports whether the ranks of a pod that stays were being ended before that moment.
func (s State) haltedBefore(at time.Time) bool {
	return s.Ending && !s.Terminating && !at.IsZero() && at.After(s.EndingSince)
}

// held reports whether all state of the ranks is in memory.
func (s State) held() bool { return s.every(func(r Rank) bool { return len(r.Sealed) > 0 }) }

// terminationCode returns the exit code of a terminating pod: that of its command, as without us, where the command is
// a rank and was not killed.
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

// terminate ends what runs, gently, because the pod is terminating. Then it waits to be ordered to exit, which happens
// once the pod is released from its Job, so that its end is no failure of that Job; at most until ReleaseBy.
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
