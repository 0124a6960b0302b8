package status

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// goodput is the share of the time since the first start that was spent on steps that were kept, such as
// "98.6%"; empty where nothing has started.
func goodput(started, until time.Time, lost time.Duration) string {
	share, ok := goodputShare(started, until, lost)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.1f%%", 100*share)
}

// goodputShare is the same as a number from 0 to 1; ok is false where no time has passed.
func goodputShare(started, until time.Time, lost time.Duration) (share float64, ok bool) {
	total := until.Sub(started)
	if started.IsZero() || total <= 0 {
		return 0, false
	}
	return max(0, min(1, 1-float64(lost)/float64(total))), true
}

// age writes how long ago something was in one unit, such as "9s"; empty where it never was.
func age(at, now time.Time) string {
	d := now.Sub(at)
	switch {
	case at.IsZero():
		return ""
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Figures fills in the parts of a Gang's status that count: steps, ages, goodput. They stand still once
// the gang has ended.
func Figures(s *v1alpha1.GangStatus, r *v1alpha1.RunStatus, now time.Time) {
	if r == nil {
		return
	}
	now = lastMoment(r, now)
	s.Step, s.SavedStep = step(r), r.Progress.SavedStep
	if r.Progress.SavedAt != nil && s.SavedStep > 0 {
		s.Saved = age(r.Progress.SavedAt.Time, now)
	}
	s.Goodput = ""
	if r.StartedAt != nil && r.Progress.ResumeUnknown == 0 {
		s.Goodput = goodput(r.StartedAt.Time, now, time.Duration(r.Progress.LostMs)*time.Millisecond)
	}
}

// step is the newest step that all ranks finished: the script's own, else optimizer steps after the point that training resumed from, in
// the newest generation or, before its first step, in the one before. 0: not known.
func step(r *v1alpha1.RunStatus) int64 {
	p := &r.Progress
	switch n := len(r.Recoveries); {
	case p.Step > 0:
		return p.Step
	case p.OptimizerSteps > 0 && p.ResumedAt != nil:
		return *p.ResumedAt + p.OptimizerSteps
	case p.OptimizerSteps == 0 && n > 0 && r.Recoveries[n-1].ReachedStep != nil:
		return *r.Recoveries[n-1].ReachedStep
	}
	return 0
}

// Goodput is the share of time that was spent on steps that were kept; ok is false before the first start, and where it is not known
// what was lost.
func Goodput(r *v1alpha1.RunStatus, now time.Time) (share float64, ok bool) {
	if r == nil || r.StartedAt == nil || r.Progress.ResumeUnknown > 0 {
		return 0, false
	}
	return goodputShare(r.StartedAt.Time, lastMoment(r, now), time.Duration(r.Progress.LostMs)*time.Millisecond)
}

// lastMoment is now, or when the gang ended.
func lastMoment(r *v1alpha1.RunStatus, now time.Time) time.Time {
	if r.Verdict != nil && r.Verdict.At.Time.Before(now) {
		return r.Verdict.At.Time
	}
	return now
}
