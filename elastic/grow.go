package elastic

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/quorum"
)

// A gang that trains with fewer pods takes candidates in at a planned halt: all ranks go on to one step and stay there (package barrier),
// and are halted then, so that no step is done again. A candidate whose state no rank can give joins no generation by itself.
const (
	// growBatch is how long further candidates that start, and standbys, are waited for.
	growBatch = 30 * time.Second
	// growWithin is how long ranks may take to meet at the step; growStuck is a share of it.
	growWithin, growStuck = 30 * time.Second, 6
	// snoozeLeast and snoozeMost bound the time from one growth to the next, snoozeCost is how many times a generation's cost it is at least.
	snoozeLeast, snoozeMost, snoozeCost = 5 * time.Minute, time.Hour, 10
)

// Growths are the planned halts of a gang.
type Growths struct {
	// At is when the newest one was, or was given up; Snooze is how long after it no other follows. Came are the slots that it took in.
	At     time.Time
	Snooze time.Duration
	Came   []Slot
}

// growth is the way to a planned halt.
type growth struct {
	// readyAt is when the first candidate was ready, since when ranks go on to the step; zero: they do not.
	readyAt, since time.Time
	barrier        barrier.Barrier
}

// begun reports whether ranks go on to a step, or stay there.
func (g *growth) begun() bool { return !g.since.IsZero() }

// dropGrowth lets ranks go on.
func (s *State) dropGrowth() {
	if s.run.growth.begun() {
		s.emit(Broadcast{})
	}
	s.run.growth = growth{}
}

// grow takes candidates in; it reports whether the generation must be halted for them: all ranks stay at one step, or the job wants them
// restarted.
func (s *State) grow(now time.Time) (halt bool) {
	g := &s.run.growth
	ready, starting := s.candidates()
	s.sayOutside(ready)
	stays, parts := s.canGrow(), s.members.Parts()
	if s.fits(parts+len(ready)) <= parts || s.sizes.Grow == quorum.GrowOff || !stays && !s.growsWithRestart() {
		s.dropGrowth()
		return false
	}
	if g.readyAt.IsZero() {
		g.readyAt = now
	}
	if !g.begun() {
		if starting && now.Sub(g.readyAt) < growBatch || now.Before(s.sizes.growths.At.Add(s.sizes.growths.Snooze)) {
			return false
		}
		if !stays {
			s.noteGrowth(ready, now)
			return true
		}
		g.since = now
	}
	if now.Sub(g.since) > growWithin {
		s.noteGrowth(nil, now)
		s.dropGrowth()
		return false
	}
	pace, b := s.account.Pace(), &g.barrier
	passed := s.members.All(func(m *members.Member) bool { return m.Report().BarrierStep == b.Step() })
	b.Note(s.members.Levels(), passed, now)
	if b.Move(pace, s.members.LowestNewest(), growWithin/growStuck, now) {
		s.emit(Broadcast{})
	}
	if !b.AtBarrier(pace, growWithin/growStuck, now) {
		return false
	}
	s.noteGrowth(ready, now)
	return true
}

// staysOut begins, in Progress.Fewer, the text about a pod that cannot take part.
const staysOut = "; outside: "

// sayOutside says why the first candidate is not taken in, if it is for its state or for the job's wish.
func (s *State) sayOutside(ready []Slot) {
	text, _, _ := strings.Cut(s.Record.Progress.Fewer, staysOut)
	if why := s.outside(len(ready)); len(ready) > 0 && why != "" {
		text += fmt.Sprintf("%spod %s of slot %d %s", staysOut, s.members.At(ready[0]).Pod().Name, ready[0], why)
	}
	if text != s.Record.Progress.Fewer {
		s.Record.Progress.Fewer = text
		s.emit(PersistLater{})
	}
}

// outside returns why candidates are not taken in, as what the text says of a pod; "": they are.
func (s *State) outside(ready int) string {
	parts := s.members.Parts()
	switch why := s.members.Ungiven(); {
	case s.fits(parts+ready) <= parts:
		v := quorum.View{Limits: s.sizes.Limits, Slots: make([]quorum.Slot, s.members.Len()), Struck: s.sizes.struck}
		return "waits for further pods: " + v.Strikes(parts+ready)
	case s.sizes.Grow == quorum.GrowOff:
		return "joins the next restart of the ranks (holdfast.dev/grow is off)"
	case s.growsWithRestart():
	case s.members.NoneHolds():
		return "joins the next restart of the ranks: no rank holds a step that it could take over (holdfast.dev/grow: with-restart ends ranks for it)"
	case why != "":
		return "has no state: " + why
	}
	return ""
}

// growsWithRestart reports whether ranks are ended for candidates though they cannot stay at a step: the job wants that, and no rank holds
// a state that a candidate would lack.
func (s *State) growsWithRestart() bool {
	return s.sizes.Grow == quorum.GrowWithRestart && s.members.NoneHolds()
}

// canGrow reports whether ranks can stay at a step, and give their state to candidates.
func (s *State) canGrow() bool {
	stays := func(m *members.Member) bool { return m.Drains(s.generation.Number) && m.Report().StateBytes > 0 }
	return s.members.Gives() && s.members.All(stays)
}

// noteGrowth records a planned halt, or one that was given up.
func (s *State) noteGrowth(came []Slot, now time.Time) {
	g := &s.sizes.growths
	if now.Sub(g.At) > snoozeMost {
		g.Snooze = 0
	}
	g.Snooze = min(snoozeMost, max(snoozeLeast, snoozeCost*s.account.GenerationCost(), g.Snooze))
	g.At, g.Came = now, came
}

// noteLostAgain makes the next growth wait longer if a slot that the newest one took in takes no part again.
func (s *State) noteLostAgain() {
	g := &s.sizes.growths
	lost := func(slot Slot) bool {
		return !s.members.Takes(slot) && s.replacements.Lacks(slot, s.generation.Number-1) != ""
	}
	if slices.ContainsFunc(g.Came, lost) {
		g.Snooze, g.Came = min(snoozeMost, 2*g.Snooze), nil
	}
}

// becomeGrowing ends the generation for candidates. Ranks that cannot stay at a step get the grace period of their pods, so that a script
// that saves on SIGTERM can.
func (s *State) becomeGrowing(now time.Time) {
	ready, _ := s.candidates()
	n, how := s.members.Parts(), fmt.Sprintf("all ranks stay at step %d", s.generation.CommonStep())
	within := time.Duration(0)
	if s.growsWithRestart() {
		how, within = "all ranks are restarted (holdfast.dev/grow is with-restart)", s.members.LeastGrace()
	}
	message := fmt.Sprintf("%s, to go on with %d pods instead of %d", how, s.fits(n+len(ready)), n)
	s.becomeHalting(generation.Suspect{Cause: &cause.Cause{Code: cause.GangGrows, Rank: -1, Slot: -1, Message: message}, Ordered: true}, now)
	s.run.halting.watch.Allow(within)
}
