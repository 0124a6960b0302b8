package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

// countsSeen is how often a count that merely rises is stored for people to see: a plain script counts for as long as it runs, and what
// decides upon the count is stored when a generation ends or begins.
const countsSeen = 30 * time.Second

// count takes over what ranks of the newest generation count, which only rises within it.
func (s *State) count(c members.Counted, now time.Time) {
	if c.Lowest < s.run.counted.Lowest || c.Most < s.run.counted.Most || c.Most == 0 {
		return // an agent that came back in the middle counts anew, or nobody counts
	}
	if c.Known = c.Known && c.Lowest > 0; !c.Known {
		c.ResumedAt = 0
	}
	s.run.counted = c
	p := &s.Record.Progress
	news := (p.OptimizerSteps == 0) != (c.Lowest == 0) || p.ResumeKnown != c.Known || p.ResumedAt != c.ResumedAt
	p.OptimizerSteps, p.ResumedAt, p.ResumeKnown = c.Lowest, c.ResumedAt, c.Known
	if news {
		s.persistCount(now)
	}
}

// persistLateCount has a count stored that rose some time ago; it may have stopped since.
func (s *State) persistLateCount(now time.Time) {
	if s.persistedCount != s.Record.Progress.OptimizerSteps && now.Sub(s.persistedCountAt) >= countsSeen {
		s.persistCount(now)
	}
}

// persistCount has the count stored for people to see.
func (s *State) persistCount(now time.Time) {
	s.persistedCount, s.persistedCountAt = s.Record.Progress.OptimizerSteps, now
	s.emit(PersistLater{})
}

// reached returns the step that ranks had reached when the newest generation ended: the script's own, else the state's
// optimizer steps. Where no rank finished a step since the last recovery, what that one had to do again is still to be
// done. Where the script has reported nothing so far, a generation that ended early counts as having finished no step;
// of a longer one nothing is known.
func (s *State) reached() (step int64, known bool) {
	last := s.lastRecovery()
	switch p := &s.Record.Progress; {
	case s.reportsSteps():
		return max(p.Step, s.run.commonStep), true
	case s.run.counted.Most > 0:
		return s.run.counted.ResumedAt + s.run.counted.Lowest, s.run.counted.Known
	case last != nil && last.Generation == s.Record.Generation && (s.countsSteps() || !last.ReachedKnown):
		return last.Reached, last.ReachedKnown
	}
	return 0, s.run.runningSince.IsZero() || s.run.halting.detected.Sub(s.run.runningSince) <= stepsOutlast*s.medianRecovery()
}

// firstEver records the first step that is ever reported: earlier generations that ended early had finished none, so
// nothing was done again after them.
func (s *State) firstEver() {
	p, n := &s.Record.Progress, 0
	for i := range s.Record.Recoveries {
		if !s.Record.Recoveries[i].ReachedKnown {
			n++
		}
	}
	p.ResumeUnknown = min(p.ResumeUnknown, n)
}

// stepped says whether the newest generation is known to have finished a step.
func (s *State) stepped() bool {
	return s.run.reportedStep > 0 || s.run.counted.Most > 0 || s.run.commonStep > max(0, s.Record.RestoreStep)
}

// countsSteps reports whether ranks are known to report steps, so that a first one is to be expected.
func (s *State) countsSteps() bool {
	if s.reportsSteps() || s.run.counted.Most > 0 {
		return true
	}
	for i := range s.Record.Recoveries {
		if s.Record.Recoveries[i].EndedAfter > 0 {
			return true
		}
	}
	return false
}

// resume finds out where training went on after the newest recovery. What was restored from memory is known when the
// generation starts; a script that reports its steps says it by the first one, and one that does not by the state of
// its optimizer or scheduler.
func (s *State) resume() {
	rec := s.lastRecovery()
	if rec == nil || rec.Generation != s.Record.Generation || rec.ResumeKnown {
		return
	}
	switch {
	case s.Record.RestoreStep > 0:
		rec.ResumedAt = s.Record.RestoreStep
	case s.run.reportedStep > 0:
		rec.ResumedAt = max(0, s.run.reportedStep-max(1, s.gap))
	case !s.reportsSteps() && s.run.counted.Known:
		rec.ResumedAt = s.run.counted.ResumedAt
	default:
		return
	}
	rec.ResumeKnown = true
	if !rec.CostKnown() {
		return
	}
	rec.StepsRecomputed = max(0, rec.Reached-rec.ResumedAt)
	if p := &s.Record.Progress; rec.Generation <= s.settled { // it was closed without
		p.ResumeUnknown = max(0, p.ResumeUnknown-1)
		p.Lost += s.recomputeTime(rec)
	}
	s.emit(PersistLater{})
}

// CostKnown says whether it is known what was done again after a recovery.
func (r *Recovery) CostKnown() bool { return r.ReachedKnown && r.ResumeKnown }

// recomputeTime returns the time spent on steps that were done again after a recovery.
func (s *State) recomputeTime(rec *Recovery) time.Duration {
	return time.Duration(rec.StepsRecomputed) * s.stepTime()
}

// stepTime is how long a step takes, as measured by this coordinator or one before it.
func (s *State) stepTime() time.Duration {
	if s.pace > 0 {
		return s.pace
	}
	return s.Record.Progress.StepTime
}

// keepPace notes how long steps took until the failure: on average where no pace was measured.
func (s *State) keepPace() {
	p := &s.Record.Progress
	until := s.run.halting.detected
	if first := s.members.FirstDetection(s.Record.Generation); !first.IsZero() {
		until = first
	}
	n, since := s.run.counted.Lowest, s.run.runningSince
	if s.reportsSteps() {
		n, since = p.Step, s.Record.StartedAt.Add(p.Lost)
	}
	switch {
	case s.pace > 0:
		p.StepTime = s.pace
	case p.StepTime == 0 && n > 0 && !s.Record.StartedAt.IsZero() && !since.IsZero() && until.After(since):
		p.StepTime = until.Sub(since) / time.Duration(n)
	}
}
