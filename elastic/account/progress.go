package account

import (
	"slices"
	"time"

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
//     the budget for MaxUnproven restarts at most, and a failure that was seen before it is not forgotten.
//  4. Where not even that is known: a generation that ran for longRun. One that did is no guess under 3 either.
//
// What 1 and 2 compare is Record.BestStep; 3 and 4 are judged when a generation has ended.
const (
	// stepsOutlast: a job that spends less than a quarter of its time on recoveries gets on.
	stepsOutlast = 3
	// recoveryUnknown stands for the median recovery before any is on record. A cold start of a plain script, up to its first step
	// after a kill, took 12 to 14 s where torchrun's own took as long; a third is left for slower machines.
	recoveryUnknown = 20 * time.Second
	// MaxUnproven limits the restarts for which guesses refill the budget without certain progress: a job that is killed every five
	// minutes on average has a run of ten minutes among so many in all but a few of a thousand cases.
	MaxUnproven = 30
	// longRun counts as progress where nothing is known of what a script does.
	longRun = 10 * time.Minute
)

// Budget counts restarts. Failures spend it (judge), progress refills it.
type Budget struct {
	// Restarts counts all, WithoutProgress those since the last progress.
	Restarts, WithoutProgress int
	// Unproven counts the restarts before those that a guess removed from WithoutProgress (rule 3).
	Unproven int
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
	if n := b.sinceSure(); n <= MaxUnproven {
		b.WithoutProgress, b.Unproven = 0, n
	}
}

// sinceSure are the restarts since the last progress that is sure.
func (b *Budget) sinceSure() int { return b.WithoutProgress + b.Unproven }

// RestartsLeft is how many restarts there may be yet: of as many as people allow this launcher, or else of those without progress.
func (a *Account) RestartsLeft(most int, limited bool) int {
	if limited {
		return most - a.LaunchRestarts()
	}
	return protocol.RestartsWithoutProgress - a.budget.WithoutProgress
}

// noteBest records a step that all ranks hold or finished (rules 1 and 2).
func (a *Account) noteBest(step int64) {
	if step > a.bestStep {
		a.bestStep = step
		a.budget.refill()
	}
}

// NoteCommon records the newest step that all ranks hold while they run.
func (a *Account) NoteCommon(step int64, now time.Time) {
	f := &a.figures
	if step != f.SavedStep {
		if step > f.SavedStep {
			f.SavedAt = now
		}
		f.SavedStep, a.changed = step, true
	}
	a.noteBest(step)
}

// NoteLeftWith records the newest step that every rank holds after all have halted.
func (a *Account) NoteLeftWith(step int64, now time.Time) {
	if f := &a.figures; step > f.SavedStep {
		f.SavedStep, f.SavedAt = step, now
	}
	a.noteBest(step)
}

// reportsSteps reports whether the script has ever reported a step of its own.
func (a *Account) reportsSteps() bool { return a.bestStep > 0 || a.figures.Step > 0 }

// Credit refills the budget if the generation that ended made progress (rules 3 and 4).
func (a *Account) Credit(g Generation, endedAt time.Time) {
	switch progress, sure := a.ranOn(g, endedAt); {
	case progress && sure:
		a.budget.refill()
	case progress:
		a.budget.guess()
	}
}

// ranOn reports whether the generation that has ended was progress given how long it ran, and whether that is more than
// a guess.
func (a *Account) ranOn(g Generation, endedAt time.Time) (progress, sure bool) {
	if a.reportsSteps() || a.gen.runningSince.IsZero() {
		return false, false
	}
	ran := endedAt.Sub(a.gen.runningSince)
	if a.gen.counted.Lowest == 0 {
		return ran >= longRun, true
	}
	if ran <= min(stepsOutlast*a.medianRecovery(), longRun) {
		return false, false
	}
	if at, known := a.reached(g, endedAt); known {
		return at > a.bestReached(), true
	}
	return !a.endedThere(g), ran >= longRun
}

// bestReached is the newest step at which a generation on record is known to have ended.
func (a *Account) bestReached() int64 {
	best := int64(0)
	for i := range a.recoveries {
		if rec := &a.recoveries[i]; rec.ReachedKnown {
			best = max(best, rec.Reached)
		}
	}
	return best
}

// medianRecovery is the median, over the recoveries on record that came to their end, of the time from detection to first step.
func (a *Account) medianRecovery() time.Duration {
	took := []time.Duration{}
	for i := range a.recoveries {
		if rec := &a.recoveries[i]; rec.FirstStep >= 0 {
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
func (a *Account) endedThere(g Generation) bool {
	last := a.last()
	if last == nil || last.Generation != g.Number || last.EndedAfter == 0 {
		return false
	}
	return max(a.gen.counted.Most-last.EndedAfter, last.EndedAfter-a.gen.counted.Most) <= 1
}
