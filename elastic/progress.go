package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// What counts as progress. Progress refills the budget of restarts, and a failure that is seen again after it is a new one.
//
//  1. Where state is kept in memory: a step that all ranks hold sealed and that is newer than any before, whether agents report it
//     while they run or once they have halted: a generation may end before any says that it runs.
//  2. Where it is not, and the script tells its steps: a step that all ranks finished and that is newer than any before.
//  3. Where the script tells no step: a generation in which every rank finished an optimizer step, and that ran for longer
//     than stepsOutlast × the median recovery (recoveryUnknown where none is on record, longRun at most, so that a script of
//     which more is known is never judged harder). Ranks count optimizer steps from 1 in every process: where the state says how
//     many it held, the step that was reached must be newer than any that a generation on record reached. Where it does not, the
//     generation must not have ended after as many steps as the one before it, give or take one, and that is a guess: it refills
//     the budget for unprovenMost restarts at most, and a failure that was seen before it is not forgotten.
//  4. Where not even that is known: a generation that ran for longRun. One that did is no guess under 3 either.
//
// What 1 and 2 compare is Record.BestStep; 3 and 4 are judged when a generation has ended.
const (
	// RestartsWithoutProgress is how often a gang is restarted without progress before it is given up (judge).
	RestartsWithoutProgress = protocol.RestartsWithoutProgress
	// stepsOutlast: a job that spends less than a quarter of its time on recoveries gets on.
	stepsOutlast = 3
	// recoveryUnknown stands for the median recovery before any is on record. A cold start of a plain script, up to its first step
	// after a kill, took 12 to 14 s where torchrun's own took as long; a third is left for slower machines.
	recoveryUnknown = 20 * time.Second
	// unprovenMost is for how many restarts guesses refill the budget with nothing sure between: a job that is killed every five minutes
	// on average has a run of ten minutes among so many in all but a few of a thousand cases.
	unprovenMost = 30
	// longRun counts as progress where nothing is known of what a script does.
	longRun = 10 * time.Minute
)

// Budget counts restarts. It is spent by failures (judge), and refilled by progress.
type Budget struct {
	// Restarts are all there were, WithoutProgress those since the last progress.
	Restarts, WithoutProgress int
	// Unproven are the restarts before those that were struck from WithoutProgress by a guess (rule 3).
	Unproven int
}

// restartsLeft is how many restarts there may be yet: of as many as people allow this launcher, or else of those without progress.
func (s *State) restartsLeft() int {
	if most, said := s.members.MaxRestarts(); said {
		return most - (s.Record.Restarts - s.Record.Launch.Restarts)
	}
	return RestartsWithoutProgress - s.Record.WithoutProgress
}

func (b *Budget) spend() { b.Restarts, b.WithoutProgress = b.Restarts+1, b.WithoutProgress+1 }

// refund: what was spent last was no failure.
func (b *Budget) refund() {
	b.Restarts, b.WithoutProgress = max(0, b.Restarts-1), max(0, b.WithoutProgress-1)
}

// refill: what is sure to be progress; nothing before it counts any more.
func (b *Budget) refill() { b.WithoutProgress, b.Unproven = 0, 0 }

// guess: what may be progress.
func (b *Budget) guess() {
	if n := b.sinceSure(); n <= unprovenMost {
		b.WithoutProgress, b.Unproven = 0, n
	}
}

// sinceSure are the restarts since the last progress that is sure.
func (b *Budget) sinceSure() int { return b.WithoutProgress + b.Unproven }

// best records a step that all ranks hold or finished (rules 1 and 2).
func (s *State) best(step int64) {
	if r := &s.Record; step > r.BestStep {
		r.BestStep = step
		r.refill()
	}
}

// bestAtEnd records the newest step that every rank is left with once all have halted.
func (s *State) bestAtEnd(now time.Time) {
	if !s.members.All(func(m *members.Member) bool { return m.Halted(s.Record.Generation) && m.Report().Ranks > 0 }) { // a pod whose launcher is not there has no ranks yet
		return
	}
	step := restore.InMemory(s.members.Inventories(), s.Record.Branches).Step
	if p := &s.Record.Progress; step > p.SavedStep {
		p.SavedStep, p.SavedAt = step, now
	}
	s.best(step)
}

// reportsSteps reports whether the script has ever reported a step of its own.
func (s *State) reportsSteps() bool {
	return s.Record.BestStep > 0 || s.Record.Progress.Step > 0
}

// credit refills the budget where the generation that has ended was progress for what it ran (rules 3 and 4).
func (s *State) credit() {
	r := &s.Record
	switch progress, sure := s.ranOn(); {
	case progress && sure:
		r.refill()
	case progress:
		r.guess()
	}
}

// ranOn reports whether the generation that has ended was progress given how long it ran, and whether that is more than
// a guess.
func (s *State) ranOn() (progress, sure bool) {
	if s.reportsSteps() || s.run.runningSince.IsZero() {
		return false, false
	}
	ran := s.run.halting.detected.Sub(s.run.runningSince)
	if s.run.counted.Lowest == 0 {
		return ran >= longRun, true
	}
	if ran <= min(stepsOutlast*s.medianRecovery(), longRun) {
		return false, false
	}
	if at, known := s.reached(); known {
		return at > s.bestReached(), true
	}
	return !s.endedThere(), ran >= longRun
}

// bestReached is the newest step at which a generation on record is known to have ended.
func (s *State) bestReached() int64 {
	best := int64(0)
	for i := range s.Record.Recoveries {
		if rec := &s.Record.Recoveries[i]; rec.ReachedKnown {
			best = max(best, rec.Reached)
		}
	}
	return best
}

// medianRecovery is the median, over the recoveries on record that came to their end, of the time from detection to first step.
func (s *State) medianRecovery() time.Duration {
	took := []time.Duration{}
	for i := range s.Record.Recoveries {
		if rec := &s.Record.Recoveries[i]; rec.FirstStep >= 0 {
			took = append(took, rec.Total())
		}
	}
	if len(took) == 0 {
		return recoveryUnknown
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// endedThere reports whether the generation ended where the one before it did: after the same number of optimizer
// steps, plus or minus the one that ranks may be apart.
func (s *State) endedThere() bool {
	last := s.lastRecovery()
	if last == nil || last.Generation != s.Record.Generation || last.EndedAfter == 0 {
		return false
	}
	return max(s.run.counted.Most-last.EndedAfter, last.EndedAfter-s.run.counted.Most) <= 1
}
