package account

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

// countsSeen is the interval at which a rising count is stored for users. The count changes all the time; decisions read it when a
// generation ends or begins, and then it is stored anyway.
const countsSeen = 30 * time.Second

// count records the optimizer steps of the newest generation, which only rise within it.
func (a *Account) count(c members.Counted, now time.Time) {
	if c.Lowest < a.gen.counted.Lowest || c.Most < a.gen.counted.Most || c.Most == 0 {
		return // a restarted agent counts from zero again, or no agent counts
	}
	if c.Known = c.Known && c.Lowest > 0; !c.Known {
		c.ResumedAt = 0
	}
	a.gen.counted = c
	p := &a.figures
	news := (p.OptimizerSteps == 0) != (c.Lowest == 0) || p.ResumeKnown != c.Known || p.ResumedAt != c.ResumedAt
	p.OptimizerSteps, p.ResumedAt, p.ResumeKnown = c.Lowest, c.ResumedAt, c.Known
	if news {
		a.persistCount(now)
	}
}

// RecordLateCount stores a count that rose some time ago and may not have risen since.
func (a *Account) RecordLateCount(now time.Time) {
	if a.persistedCount != a.figures.OptimizerSteps && now.Sub(a.persistedCountAt) >= countsSeen {
		a.persistCount(now)
	}
}

// persistCount stores the count for users.
func (a *Account) persistCount(now time.Time) {
	a.persistedCount, a.persistedCountAt = a.figures.OptimizerSteps, now
	a.changed = true
}

// reached returns the step that ranks had reached when the newest generation ended: the script's own, else the optimizer steps of the
// state. If no rank finished a step since the last recovery, the steps that it had to recompute are still to be done. If the script has
// reported no step so far, a generation that ended early counts as having finished none; for a longer one the step is unknown.
func (a *Account) reached(g Generation, endedAt time.Time) (step int64, known bool) {
	last := a.last()
	switch p := &a.figures; {
	case a.reportsSteps():
		return max(p.Step, g.CommonStep), true
	case a.gen.counted.Most > 0:
		return a.gen.counted.ResumedAt + a.gen.counted.Lowest, a.gen.counted.Known
	case last != nil && last.Generation == g.Number && (a.CountsSteps() || !last.ReachedKnown):
		return last.Reached, last.ReachedKnown
	}
	return 0, a.gen.runningSince.IsZero() || endedAt.Sub(a.gen.runningSince) <= stepsOutlast*a.medianRecovery()
}

// firstEver records that a step is reported for the first time: earlier generations that ended early had finished none, so no step was
// recomputed after them.
func (a *Account) firstEver() {
	p, n := &a.figures, 0
	for i := range a.recoveries {
		if !a.recoveries[i].ReachedKnown {
			n++
		}
	}
	p.ResumeUnknown = min(p.ResumeUnknown, n)
}

// stepped reports whether the newest generation is known to have finished a step.
func (a *Account) stepped(g Generation) bool {
	return a.gen.reportedStep > 0 || a.gen.counted.Most > 0 || g.CommonStep > max(0, g.RestoreStep)
}

// Stepless reports whether the newest generation, which ended then, had no common step. If the script has reported no step so far, one that
// ended early counts as such.
func (a *Account) Stepless(g Generation, endedAt time.Time) bool {
	if g.CommonStep > max(0, g.RestoreStep) {
		return false
	}
	return a.CountsSteps() || a.gen.runningSince.IsZero() || endedAt.Sub(a.gen.runningSince) <= stepsOutlast*a.medianRecovery()
}

// Worked reports whether a generation after this one has finished a step, as far as steps are known.
func (a *Account) Worked(after int64) bool {
	return a.reportsSteps() || a.gen.counted.Most > 0 || slices.ContainsFunc(a.recoveries, func(rec Recovery) bool {
		return rec.Generation > after+1 && rec.EndedAfter > 0
	})
}

// CountsSteps reports whether ranks are known to report steps, so that a first step is expected.
func (a *Account) CountsSteps() bool {
	if a.reportsSteps() || a.gen.counted.Most > 0 {
		return true
	}
	for i := range a.recoveries {
		if a.recoveries[i].EndedAfter > 0 {
			return true
		}
	}
	return false
}

// TrackResume finds the resume point of the newest recovery. For a restore from memory it is known when the generation starts. Otherwise it
// follows from the first step that the script reports, or from the state of its optimizer or scheduler.
func (a *Account) TrackResume(g Generation) {
	rec := a.last()
	if rec == nil || rec.Generation != g.Number || rec.ResumeKnown {
		return
	}
	switch {
	case g.RestoreStep > 0:
		rec.ResumedAt = g.RestoreStep
	case a.gen.reportedStep > 0:
		rec.ResumedAt = max(0, a.gen.reportedStep-max(1, a.gap))
	case !a.reportsSteps() && a.gen.counted.Known:
		rec.ResumedAt = a.gen.counted.ResumedAt
	default:
		return
	}
	rec.ResumeKnown = true
	if !rec.CostKnown() {
		return
	}
	rec.StepsRecomputed = max(0, rec.Reached-rec.ResumedAt)
	if p := &a.figures; rec.Closed { // closed before the resume point was known
		p.ResumeUnknown = max(0, p.ResumeUnknown-1)
		p.Lost += a.recomputeTime(rec)
	}
	a.changed = true
}

// CostKnown reports whether the number of recomputed steps is known.
func (r *Recovery) CostKnown() bool { return r.ReachedKnown && r.ResumeKnown }

// recomputeTime returns the time spent on recomputed steps after a recovery.
func (a *Account) recomputeTime(rec *Recovery) time.Duration {
	return time.Duration(rec.StepsRecomputed) * a.stepTime()
}

// stepTime returns the duration of a step, as this or an earlier coordinator measured it.
func (a *Account) stepTime() time.Duration {
	if a.pace > 0 {
		return a.pace
	}
	return a.figures.StepTime
}

// keepPace stores the duration of steps before the failure: the average if no pace was measured.
func (a *Account) keepPace(until time.Time) {
	p := &a.figures
	n, since := a.gen.counted.Lowest, a.gen.runningSince
	if a.reportsSteps() {
		n, since = p.Step, a.startedAt.Add(p.Lost)
	}
	switch {
	case a.pace > 0:
		p.StepTime = a.pace
	case p.StepTime == 0 && n > 0 && !a.startedAt.IsZero() && !since.IsZero() && until.After(since):
		p.StepTime = until.Sub(since) / time.Duration(n)
	}
}
