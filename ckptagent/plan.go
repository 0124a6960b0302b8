package ckptagent

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// goal is what the levels ask for now: one thing, which machine.drive goes on with until the state says that it is done.
type goal int

const (
	goalNone goal = iota
	// goalPass: the gang is at a later launcher than this pod.
	goalPass
	// goalLeave: the launcher, or the whole command, waits for nothing any more.
	goalLeave
	// goalTerminate: the pod is shut down.
	goalTerminate
	// goalConclude: the container ends as its command did.
	goalConclude
	// goalStart: the wanted generation is a new one. goalSkip: it is not one for this pod. goalLevels: it runs here.
	goalStart
	goalSkip
	goalLevels
	// goalHalt: what runs here is over, for the whole gang.
	goalHalt
	// goalExit: the container ends as the coordinator says.
	goalExit
)

// goal is the same for the same state and time, whoever asks and however often. A terminating pod ends by itself, unless the
// coordinator says how; a launcher that has returned wants nothing more; an order of a generation that is over is none.
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

// runGoal is what the order to run a generation asks for.
func (s State) runGoal() goal {
	switch run := s.Want.Run; {
	case run.Number == s.Run.Number && s.Clean && s.Phase == protocol.StateRunning:
		return goalHalt // an earlier coordinator had its ranks ended, and this one does not know
	case run.Number <= s.Generation && (run.Number != s.Run.Number || s.Clean):
		return goalNone // it has run
	case run.Number <= s.Generation:
		return goalLevels
	case !s.startable():
		return goalNone
	case !s.fits(run):
		return goalSkip
	}
	return goalStart
}

// passed reports whether the launcher that is served is one that the gang has left behind it.
func (s State) passed() bool { return s.Launcher != "" && s.Want.Launch > s.Launch }

// directiveIsCurrent reports whether the newest directive is about the present.
func (s State) directiveIsCurrent() bool {
	return s.Want.Order != protocol.OrderNone && s.Want.Generation >= s.Generation
}

// haltWanted reports whether the coordinator halts the generation.
func (s State) haltWanted() bool { return s.directiveIsCurrent() && s.Want.Order == protocol.OrderHalt }

// settled reports whether no process is left and the inventory is taken.
func (s State) settled() bool { return s.Clean && (s.Inventoried || s.Ranks == 0) }

// abandoned reports whether the agent has recorded which step the wanted generation restored, or knows it because that
// generation ran here.
func (s State) abandoned() bool {
	return s.Want.Run.Number <= max(s.Generation, s.Abandoned.Generation)
}

// startable reports whether a launcher, or a whole command, could start the ranks of a generation.
func (s State) startable() bool { return s.Attached && s.Ranks > 0 && !s.Terminating }

// firstRunCounts reports whether the first run of a whole command counts as its rank's run: where others were
// restarted, all start together.
func (s State) firstRunCounts() bool { return s.provisional() && s.Want.Run.RestartCount == 0 }

// fresh reports whether a launcher waits for the first generation here, as in a replacement pod.
func (s State) fresh() bool {
	return s.Run.Number == 0 && s.Ranks > 0 && s.Clean && s.Returned == nil
}

// warmWanted reports whether standbys may be warmed: while a generation runs and is past its first step, and before the first one.
func (s State) warmWanted(now time.Time) bool {
	started := s.Timeline.Started
	begun := !started.IsZero() && (!s.Timeline.FirstStep.IsZero() || now.Sub(started) >= warmAnyway)
	warm := s.Phase == protocol.StateRunning && !s.Ending && begun || s.fresh() && len(s.Modules) > 0
	return warm && s.Attached && !s.Terminating && !s.Whole
}

// repairing reports whether a repair is under way that has not led to a new generation yet.
func (s State) repairing() bool {
	t := s.Timeline
	return t.RunReceived.IsZero() && (!t.Detected.IsZero() || !t.HaltReceived.IsZero())
}

func (s State) every(is func(Rank) bool) bool {
	return len(s.Rank) > 0 && !slices.ContainsFunc(s.Rank, func(r Rank) bool { return !is(r) })
}
