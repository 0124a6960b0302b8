package ckptagent

import (
	"time"
)

// The end of a pod that is told to go. From LeftAt on it has its grace, at the end of which the kubelet kills it:
//
//	LeftAt ── trains on ──▶ LeaveBy ── ranks end, within gentle ──▶ ── waits to be released ──▶ StayBy ── lastMoment ──▶ killed
//
//	LeaveBy = LeftAt + grace − shutdownMargin; ranks end by LeftAt + grace − shutdownMargin/2; StayBy = LeftAt + grace − lastMoment
//
// It trains on for as long as the coordinator wants it to, which halts it in time to have its state copied (elastic/deadline.go).
// Each stage is over early where nobody is there to wait for.
const (
	// leaveAlone is how long a pod that is told to go trains on while no coordinator is there; drainAlone the same where a coordinator
	// that is back in time can have its state copied: one that died is replaced within its lease, 15 s, and some seconds.
	leaveAlone = 5 * time.Second
	drainAlone = 20 * time.Second
	// stayAlone is how long a pod that is told to go, and does not train any more, waits for one: its end counts as a failure of its
	// Job, which may not be allowed any, unless somebody takes it out of that Job first.
	stayAlone = time.Minute
	// lastMoment is what is left of the grace when such a pod ends by itself instead of being killed.
	lastMoment = 2 * time.Second
	// defaultGrace is what Kubernetes gives a pod that says nothing.
	defaultGrace = 30 * time.Second
	// leastMargin is the least of the grace that is kept for ending processes.
	leastMargin = 3 * time.Second
	// haltGentle is how long ranks of a leaving pod may take to end while the whole gang waits for them.
	haltGentle = 5 * time.Second
	// launcherPatience is how long a signal that only the launcher told of waits for the pod's own: the
	// kubelet's reaches both.
	launcherPatience = time.Second
)

// shutdownMargin is the part of the grace that is kept for ending processes.
func shutdownMargin(grace time.Duration) time.Duration {
	return min(max(leastMargin, grace/5), grace)
}

// Shutdown is what is known of the end of a pod that was told to go.
type Shutdown struct {
	// Leaving: the pod is being shut down, by this signal.
	Leaving bool `json:"leaving,omitempty"`
	Signal  int  `json:"signal,omitempty"`
	// ByLauncher: only the launcher has told so.
	ByLauncher bool `json:"byLauncher,omitempty"`
	// LeftAt is when the pod was told to go, LeaveBy until when it goes on training, StayBy until when it then waits to be taken out
	// of its Job; zero: at once.
	LeftAt  time.Time `json:"leftAt,omitzero"`
	LeaveBy time.Time `json:"leaveBy,omitzero"`
	StayBy  time.Time `json:"stayBy,omitzero"`
}

// Signalled says that the pod is being shut down; or, by the Launcher alone, that somebody in the pod ends it.
type Signalled struct {
	Signal   int
	Launcher bool
}

// LauncherGone says that the launcher died without having been told to return.
type LauncherGone struct{}

// Contact says whether the conversation with the coordinator goes on.
type Contact struct{ Up bool }

// Dismissed says that the pod's end is no failure of its Job: it was taken out of that, or that is over.
type Dismissed struct{}

func (e Signalled) apply(m *machine) {
	grace := m.s.grace()
	patience, stay := grace-shutdownMargin(grace), grace-lastMoment
	switch {
	case m.s.Leaving && (e.Launcher || !m.s.ByLauncher):
		return
	case m.s.Leaving: // the pod's own signal, behind that of its launcher
		m.s.ByLauncher = false
	default:
		m.s.Shutdown = Shutdown{Leaving: true, Signal: e.Signal, ByLauncher: e.Launcher, LeftAt: m.now}
	}
	if e.Launcher {
		patience = min(patience, launcherPatience)
		stay = patience // nobody knows of it, so nobody takes the pod out of its Job
	}
	m.s.LeaveBy, m.s.StayBy = m.s.LeftAt.Add(patience), m.s.LeftAt.Add(stay)
}

func (e LauncherGone) apply(m *machine) {
	if m.s.Returned != nil || m.s.Leaving && !m.s.ByLauncher { // shutting down does that to launchers
		return
	}
	m.s.Shutdown = Shutdown{Leaving: true, Signal: sigkill, LeftAt: m.s.LeftAt}
}

func (e Contact) apply(m *machine) {
	switch {
	case e.Up:
		m.s.AloneSince, m.s.Dismissed = time.Time{}, false
	case m.s.AloneSince.IsZero():
		m.s.AloneSince = m.now
	}
}

func (Dismissed) apply(m *machine) { m.s.Dismissed = true }

// alone is how long there has been no coordinator.
func (s State) alone(now time.Time) time.Duration {
	if s.AloneSince.IsZero() {
		return 0
	}
	return now.Sub(s.AloneSince)
}

// grace is how long the pod has in all once it is told to go.
func (s State) grace() time.Duration {
	if s.Grace > 0 {
		return s.Grace
	}
	return defaultGrace
}

// goes says whether a pod that is told to go ends what runs now.
func (s State) goes(now time.Time) bool {
	if s.Whole {
		return true // nothing of it could be copied, and what it does about the signal needs all of the grace
	}
	return s.Clean || s.Ending || s.Dismissed || s.haltWanted() || !now.Before(s.LeaveBy) || s.deserted(now)
}

// deserted says whether a pod that is told to go waits no longer for a coordinator before it ends what runs.
func (s State) deserted(now time.Time) bool {
	if s.copyable() {
		return s.alone(now) >= drainAlone
	}
	return s.alone(now) >= leaveAlone // nobody could save more than the script itself, which may want all of its grace for that
}

// copyable says whether a coordinator could have copied what the ranks hold.
func (s State) copyable() bool {
	return s.Storage && s.every(func(r Rank) bool { return len(r.Sealed) > 0 })
}

// stays says whether a pod that is told to go, and has halted, waits to be taken out of its Job.
func (s State) stays(now time.Time) bool {
	alone := min(s.alone(now), now.Sub(s.LeftAt)) // who could do it may have been away for long before: it may be back just in time
	return !s.Dismissed && now.Before(s.StayBy) && alone < stayAlone
}

// gentle is how long ranks of a leaving pod may take to end by themselves.
func (s State) gentle(now time.Time) time.Duration {
	grace := s.grace()
	if s.LeftAt.IsZero() {
		return grace - shutdownMargin(grace)/2 // the launcher is gone; nobody has set a time
	}
	left := s.LeftAt.Add(grace).Sub(now) - shutdownMargin(grace)/2
	if s.Whole {
		return max(left, 0)
	}
	if s.haltWanted() || s.alone(now) >= drainAlone && s.copyable() {
		left = min(left, haltGentle) // what is in memory is to be copied yet
	}
	return max(left, 0)
}

// leaveCode is how a pod that was told to go ends: as its command answered, without us, where that is a rank and was not killed.
func (s State) leaveCode() int {
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

// leave ends what runs, gently, because the pod is being shut down. Then it stays until it is told to exit, which
// is once its Job has let go of it, so that its end is no failure of that Job; at most as long as there is time.
func (m *machine) leave() {
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
		m.s.Generation, m.s.Phase = m.s.Want.Generation, Halted
	case m.s.Phase == Running || m.s.Phase == Failed:
		m.s.Phase = Halted
	}
	if m.s.stays(m.now) {
		return
	}
	if (m.s.Launcher != "" || m.s.Whole) && m.s.Returned == nil {
		m.giveBack(m.s.leaveCode(), "")
	}
}
