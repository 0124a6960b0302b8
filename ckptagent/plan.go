package ckptagent

import (
	"slices"
	"time"
)

// goal is what the levels ask for now: one thing, which machine.drive goes on with until the state says that it is done.
type goal int

const (
	goalNone goal = iota
	// goalLeave: the pod is shut down.
	goalLeave
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

// goal is the same for the same state and time, whoever asks and however often. A pod that is told to go ends by itself, unless the
// coordinator says how; a launcher that has returned wants nothing more; an order of a generation that is over is none.
func (s State) goal(now time.Time) goal {
	switch {
	case s.Leaving && !(s.news() && s.Want.Order == OrderExit) && s.goes(now):
		return goalLeave
	case s.Returned != nil:
		return goalNone
	case s.Concluded != nil:
		return goalConclude
	case s.Want.Generation < s.Generation:
		return goalNone
	}
	switch s.Want.Order {
	case OrderRun:
		return s.runGoal()
	case OrderHalt:
		return goalHalt
	case OrderExit:
		return goalExit
	case OrderNone, OrderWait:
	}
	return goalNone
}

// runGoal is what the order to run a generation asks for.
func (s State) runGoal() goal {
	switch run := s.Want.Run; {
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

// news says whether the newest directive speaks of the present.
func (s State) news() bool {
	return s.Want.Order != OrderNone && s.Want.Generation >= s.Generation
}

// haltWanted says whether the coordinator halts the generation.
func (s State) haltWanted() bool { return s.news() && s.Want.Order == OrderHalt }

// settled says whether no process is left and the inventory is taken.
func (s State) settled() bool { return s.Clean && (s.Inventoried || s.Ranks == 0) }

// abandoned says whether it was taken note of where the wanted generation restored, or that is known because it ran here.
func (s State) abandoned() bool { return s.Want.Run.Number <= max(s.Generation, s.Past.Generation) }

// startable says whether a launcher, or a whole command, could start the ranks of a generation.
func (s State) startable() bool { return s.Attached && s.Ranks > 0 && !s.Leaving }

// goesOn says whether the run of a whole command that init began counts as its rank's: where others were restarted, all begin together.
func (s State) goesOn() bool { return s.provisional() && s.Want.Run.RestartCount == 0 }

// unused says that a launcher waits for the first generation here, as in a pod that replaces another one.
func (s State) unused() bool {
	return s.Run.Number == 0 && s.Ranks > 0 && s.Clean && s.Returned == nil
}

// warmWanted says whether standbys may be warmed: while a generation runs and is past its first step, and before the first one.
func (s State) warmWanted(now time.Time) bool {
	started := s.Timeline.Started
	begun := !started.IsZero() && (!s.Timeline.FirstStep.IsZero() || now.Sub(started) >= warmAnyway)
	warm := s.Phase == Running && !s.Ending && begun || s.unused() && len(s.Modules) > 0
	return warm && s.Attached && !s.Leaving && !s.Whole
}

// repairing says whether a repair is under way that has not led to a new generation yet.
func (s State) repairing() bool {
	t := s.Timeline
	return t.RunReceived.IsZero() && (!t.Detected.IsZero() || !t.HaltReceived.IsZero())
}

func (s State) every(is func(Rank) bool) bool {
	return len(s.Rank) > 0 && !slices.ContainsFunc(s.Rank, func(r Rank) bool { return !is(r) })
}
