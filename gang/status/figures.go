package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// goodput returns the share of the time since the first start that was spent on steps that were kept, from 0 to 1; ok is false if no time
// has passed.
func goodput(started, until time.Time, lost time.Duration) (share float64, ok bool) {
	total := until.Sub(started)
	if started.IsZero() || total <= 0 {
		return 0, false
	}
	return max(0, min(1, 1-float64(lost)/float64(total))), true
}

// percent returns a share in whole percent, rounded down, so that 100 means that nothing was lost.
func percent(share float64) int32 {
	return int32(100*share + 1e-9) // in binary 0.57 is a little less
}

// Figures sets steps, goodput and capacity in a Gang's status. They stop changing when the gang has ended.
func Figures(s *v1alpha1.GangStatus, spec *v1alpha1.GangSpec, r *v1alpha1.RunStatus, now time.Time) {
	if r == nil {
		return
	}
	now = lastMoment(r, now)
	s.Step, s.SavedStep = step(r), r.Progress.SavedStep
	s.SavedAt = nil
	if r.Progress.SavedAt != nil && s.SavedStep > 0 {
		s.SavedAt = &metav1.Time{Time: r.Progress.SavedAt.Truncate(time.Second)} // as it is read back
	}
	s.GoodputPercent, s.CapacityPercent = nil, nil
	if share, ok := Goodput(r, now); ok {
		whole := percent(share)
		s.GoodputPercent = &whole
	}
	if share, ok := Capacity(spec, r, now); ok {
		whole := percent(share)
		s.CapacityPercent = &whole
	}
}

// Capacity returns the share of its pods with which a gang trained on average since the first start, from 0 to 1; ok is false before that,
// and if the gang needs all of its pods. It does not contain the time in which no pod trains: that is goodput.
func Capacity(spec *v1alpha1.GangSpec, r *v1alpha1.RunStatus, now time.Time) (share float64, ok bool) {
	if spec.MinPods <= 0 || r == nil || r.StartedAt == nil {
		return 0, false
	}
	started, until := r.StartedAt.Time, lastMoment(r, now)
	all := time.Duration(spec.Members) * until.Sub(started)
	if all <= 0 {
		return 0, false
	}
	absent := time.Duration(0)
	if z := r.Sizes; z != nil {
		absent = time.Duration(z.AbsentMs) * time.Millisecond
		if since := z.Since; since != nil {
			absent += time.Duration(len(r.Out)) * min(until.Sub(since.Time), until.Sub(started))
		}
	}
	return max(0, min(1, 1-float64(absent)/float64(all))), true
}

// step returns the newest step that all ranks finished: the script's own number, or else the resume point plus the optimizer steps since,
// of the newest generation or, before its first step, of the previous one. 0: unknown.
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

// Goodput returns the share of time that was spent on steps that were kept; ok is false before the first start, and if the loss is unknown.
func Goodput(r *v1alpha1.RunStatus, now time.Time) (share float64, ok bool) {
	if r == nil || r.StartedAt == nil || r.Progress.ResumeUnknown > 0 {
		return 0, false
	}
	lost := time.Duration(r.Progress.LostMs) * time.Millisecond
	if s := r.Progress.Standstill; s != nil && s.Verdict != v1alpha1.ReasonBusy && s.Verdict != v1alpha1.ReasonUnexplained {
		lost += max(0, lastMoment(r, now).Sub(s.Since.Time)) // it is not over
	}
	return goodput(r.StartedAt.Time, lastMoment(r, now), lost)
}

// lastMoment returns the time when the gang ended, or now.
func lastMoment(r *v1alpha1.RunStatus, now time.Time) time.Time {
	if r.Verdict != nil && r.Verdict.At.Time.Before(now) {
		return r.Verdict.At.Time
	}
	return now
}
