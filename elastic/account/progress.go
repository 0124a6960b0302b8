package account

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// What counts as progress. Progress refills the budget of restarts; the same failure after it counts as a new one.
//
//  1. If state is kept in memory: a step that all ranks hold sealed and that is newer than any before, reported by running or by halted
//     agents: a generation may end before any agent reports that it runs.
//  2. If not, and the script reports its steps: a step that all ranks finished and that is newer than any before.
//  3. If the script reports no step: a generation in which every rank finished an optimizer step, and that ran for longer than
//     stepsOutlast × the median recovery (recoveryUnknown if none is on record; at most longRun, so that rule 3 is never stricter than
//     rule 4). Ranks count optimizer steps from 1 in every process. If the restored state has its number of steps, the step that was
//     reached must be newer than that of any generation on record. If not, the generation must not have ended after as many steps as the
//     previous one, plus or minus one. The latter is a guess: it refills the budget for MaxUnproven restarts at most, and an earlier
//     failure stays known.
//  4. If optimizer steps are unknown: a generation that ran for longRun. Such a generation is certain progress under rule 3, too.
//
// Rules 1 and 2 compare with Record.BestStep; rules 3 and 4 are applied when a generation has ended.
const (
	// stepsOutlast: a job that spends less than a quarter of its time on recoveries makes progress.
	stepsOutlast = 3
	// recoveryUnknown replaces the median recovery before any is on record. The cold start of a plain script, from a kill to its first
	// step, took 12 to 14 s, as under torchrun; the rest is for slower machines.
	recoveryUnknown = 20 * time.Second
	// MaxUnproven limits the restarts for which guesses refill the budget without certain progress. A job that is killed every five minutes
	// on average has a run of ten minutes among that many with a probability of over 99 %.
	MaxUnproven = 30
	// longRun is progress if nothing is known about a script's steps.
	longRun = 10 * time.Minute
)

// Budget counts restarts. Failures spend it (judge), progress refills it.
type Budget struct {
	// Restarts counts all, WithoutProgress those since the last progress.
	Restarts, WithoutProgress int
	// Unproven counts the restarts before those that a guess removed from WithoutProgress (rule 3).
	Unproven int
	// Hangs counts the restarts of ranks that stood still since the last progress. They are not among the others.
	Hangs int
}

// maxHangs is how many times ranks that stand still are restarted without progress in between: in place, and then on other hardware.
const maxHangs = 2

func (b *Budget) spend() { b.Restarts, b.WithoutProgress = b.Restarts+1, b.WithoutProgress+1 }

// refund reverts the last spend: it was no failure.
func (b *Budget) refund() {
	b.Restarts, b.WithoutProgress = max(0, b.Restarts-1), max(0, b.WithoutProgress-1)
}

// refill records certain progress: no earlier restart counts any more.
func (b *Budget) refill() { b.WithoutProgress, b.Unproven, b.Hangs = 0, 0, 0 }

// guess records progress that is not certain.
func (b *Budget) guess() {
	if n := b.sinceSure(); n <= MaxUnproven {
		b.WithoutProgress, b.Unproven, b.Hangs = 0, n, 0
	}
}

// sinceSure returns the restarts since the last certain progress.
func (b *Budget) sinceSure() int { return b.WithoutProgress + b.Unproven }

// RestartsLeft returns how many restarts remain: of this launcher's limit, if there is one, else of those without progress.
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

// HangsLeft returns how many times ranks that stand still since then may be restarted.
func (a *Account) HangsLeft(g Generation, since time.Time) int {
	if progress, _ := a.ranOn(g, since); progress {
		return maxHangs
	}
	return maxHangs - a.budget.Hangs
}

// NoteHang counts a restart of ranks that stood still, and reports whether it repeats one without progress in between.
func (a *Account) NoteHang() (again bool) {
	a.budget.Hangs++
	return a.budget.Hangs > 1
}

// NoteStill counts a time in which ranks stood still, and which ended by itself.
func (a *Account) NoteStill(took time.Duration) {
	a.figures.Lost += took
	a.changed = true
}

// ranOn reports whether the ended generation was progress by its duration, and whether that is certain.
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

// bestReached returns the newest step at which a generation on record is known to have ended.
func (a *Account) bestReached() int64 {
	best := int64(0)
	for i := range a.recoveries {
		if rec := &a.recoveries[i]; rec.ReachedKnown {
			best = max(best, rec.Reached)
		}
	}
	return best
}

// medianRecovery returns the median time from detection to first step, over the completed recoveries on record.
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

// endedThere reports whether the generation ended after the same number of optimizer steps as the previous one, plus or minus the one by
// which ranks may differ.
func (a *Account) endedThere(g Generation) bool {
	last := a.last()
	if last == nil || last.Generation != g.Number || last.EndedAfter == 0 {
		return false
	}
	return max(a.gen.counted.Most-last.EndedAfter, last.EndedAfter-a.gen.counted.Most) <= 1
}
