package ckptagent

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// goal is what the levels require now; machine.drive pursues it until the state shows that it is reached.
type goal int

const (
	goalNone goal = iota
	// goalPass: the gang has reached a later launcher than this pod.
	goalPass
	// goalLeave: the launcher, or the whole command, no longer waits.
	goalLeave
	// goalTerminate: the pod is being shut down.
	goalTerminate
	// goalConclude: the container ends like its command.
	goalConclude
	// goalStart: start the wanted generation. goalSkip: it was not made for this pod. goalLevels: it runs here.
	goalStart
	goalSkip
	goalLevels
	// goalHalt: end all processes of the generation.
	goalHalt
	// goalExit: the container ends with the coordinator's exit code.
	goalExit
)

// goal depends only on state and time. A terminating pod ends without an order, unless the coordinator gives one. A launcher that has
// returned has no goal. An order of a generation that is over is ignored.
func (s State) goal(now time.Time) goal {
	switch {
	case s.Terminating && !(s.directiveIsCurrent() && s.Want.Order == protocol.OrderExit) && !s.passed() && s.shouldStop(now):
		return goalTerminate
	case s.Returned != nil:
		return goalNone
	case s.Concluded != nil:
		return goalConclude
	case s.passed():
		return goalPass
	case s.leaves(now):
		return goalLeave
	case s.Want.Generation < s.Generation:
		return goalNone
	}
	switch s.Want.Order {
	case protocol.OrderRun:
		return s.runGoal()
	case protocol.OrderHalt:
		return goalHalt
	case protocol.OrderExit:
		return goalExit
	case protocol.OrderNone, protocol.OrderWait:
	}
	return goalNone
}

// runGoal returns the goal of an order to run a generation.
func (s State) runGoal() goal {
	switch run := s.Want.Run; {
	case run.Number == s.Run.Number && s.Clean && s.Phase == protocol.StateRunning:
		return goalHalt // an earlier coordinator had its ranks ended, which this one does not know
	case run.Number <= s.Generation && (run.Number != s.Run.Number || s.Clean):
		return goalNone // the generation has run
	case run.Number <= s.Generation:
		return goalLevels
	case !s.startable():
		return goalNone
	case !s.fits(run):
		return goalSkip
	}
	return goalStart
}

// passed reports whether the gang has left this pod's launcher behind.
func (s State) passed() bool { return s.Launcher != "" && s.Want.Launch > s.Launch }

// directiveIsCurrent reports whether the newest directive is about the present generation and launcher.
func (s State) directiveIsCurrent() bool {
	return s.Want.Order != protocol.OrderNone && s.Want.Generation >= s.Generation
}

// haltWanted reports whether the coordinator halts the generation.
func (s State) haltWanted() bool { return s.directiveIsCurrent() && s.Want.Order == protocol.OrderHalt }

// settled reports whether no process is left and the inventory is complete.
func (s State) settled() bool { return s.Clean && (s.Inventoried || s.Ranks == 0) }

// abandoned reports whether the agent has recorded the restore step of the wanted generation, or the generation ran here.
func (s State) abandoned() bool {
	return s.Want.Run.Number <= max(s.Generation, s.Abandoned.Generation)
}

// startable reports whether a launcher, or a whole command, could start the ranks of a generation.
func (s State) startable() bool { return s.Attached && s.Ranks > 0 && !s.Terminating }

// firstRunCounts reports whether the first run of a whole command counts as its rank's run. After a restart of the gang it does not: all
// start together.
func (s State) firstRunCounts() bool { return s.provisional() && s.Want.Run.RestartCount == 0 }

// fresh reports whether a launcher waits for the first generation here, as in a replacement pod.
func (s State) fresh() bool {
	return s.Run.Number == 0 && s.Ranks > 0 && s.Clean && s.Returned == nil
}

// warmWanted reports whether standbys may be warmed: before the first generation, and while one runs after its first step.
func (s State) warmWanted(now time.Time) bool {
	started := s.Timeline.Started
	begun := !started.IsZero() && (!s.Timeline.FirstStep.IsZero() || now.Sub(started) >= warmAnyway)
	warm := s.Phase == protocol.StateRunning && !s.Ending && begun || s.fresh() && len(s.Modules) > 0
	return warm && s.Attached && !s.Terminating && !s.Whole
}

// repairing reports whether a recovery is under way that has not started a new generation yet.
func (s State) repairing() bool {
	t := s.Timeline
	return t.RunReceived.IsZero() && (!t.Detected.IsZero() || !t.HaltReceived.IsZero())
}

func (s State) every(is func(Rank) bool) bool {
	return len(s.Rank) > 0 && !slices.ContainsFunc(s.Rank, func(r Rank) bool { return !is(r) })
}
