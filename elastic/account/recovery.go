package account

import (
	"reflect"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
)

// Recovery is one repaired failure. A negative duration: the phase was not reached (yet).
type Recovery struct {
	Generation      int64
	Cause           cause.Cause
	DetectedAt      time.Time
	Decide          time.Duration
	Stop            time.Duration
	Start           time.Duration
	Restore         time.Duration
	FirstStep       time.Duration
	RestoreStep     int64
	StepsRecomputed int64
	Standbys        int
	Ranks           int
	// RanksBefore is the number of ranks of the failed generation, if Ranks is another one; 0: it is not, or none is known.
	RanksBefore int
	// EndedAfter is the highest count of optimizer steps that a rank finished in the failed generation, Reached the step that all
	// ranks had reached, if ReachedKnown. ResumedAt is where training resumed, if ResumeKnown. StepsRecomputed follows from the two.
	EndedAfter   int64
	Reached      int64
	ReachedKnown bool
	ResumedAt    int64
	ResumeKnown  bool
	// Closed: its cost is in Figures.Lost, and it is not reported again.
	Closed bool
	// Detect is the time from the last sign of life of ranks that stood still to their end, and precedes Decide. Drain precedes Stop and
	// includes Decide; Replace, Fetch and Check follow Stop.
	Detect  time.Duration
	Drain   time.Duration
	Replace time.Duration
	Fetch   time.Duration
	Check   time.Duration
	// Waited is the pod whose ranks took longest to end after SIGTERM, within Stop.
	Waited members.Waited
	// Replaced lists the pods that it replaced. In the stored record it has the first MaxReplaced, and ReplacedPods counts all.
	Replaced     []replacements.Replacement
	ReplacedPods int
}

// NotReached marks a phase of a Recovery that was not reached (yet).
const NotReached time.Duration = -1

// TrackSteps records the steps that ranks of the newest generation report. staying: they wait at a step, so their pace is not
// measured.
func (a *Account) TrackSteps(steps members.Steps, g Generation, staying bool, now time.Time) {
	low := steps.Lowest
	if steps.Running && a.gen.runningSince.IsZero() {
		a.gen.runningSince = now
		if at := steps.Started; !at.IsZero() && at.Before(now) {
			a.gen.runningSince = at
		}
	}
	if a.startedAt.IsZero() {
		a.startedAt = a.gen.runningSince
		a.changed = true
	}
	notified := a.CountsSteps()
	a.count(steps.Counted, now)
	if !notified && (low > 0 || a.gen.counted.Most > 0) {
		a.firstEver()
	}
	if !a.reportsSteps() && low <= 0 && a.gen.counted.Lowest > 0 {
		a.measure(a.gen.counted.Lowest, g, staying, now)
	}
	if a.gen.reportedStep > 0 && low > a.gen.reportedStep && (a.gap == 0 || low-a.gen.reportedStep < a.gap) {
		a.gap = low - a.gen.reportedStep
	}
	a.gen.reportedStep = max(a.gen.reportedStep, low)
	p := &a.figures
	if low <= 0 || low == p.Step {
		return
	}
	a.measure(low, g, staying, now)
	p.Step = low
	if !steps.Keeps {
		a.noteBest(low)
	}
	a.changed = true
}

// measure updates the duration of a step. measure starts with the first step of a generation: the time before is start-up.
func (a *Account) measure(step int64, g Generation, staying bool, now time.Time) {
	if step <= g.RestoreStep {
		return
	}
	if staying {
		a.gen.paceAt = time.Time{}
		return
	}
	if n := step - a.gen.paceStep; !a.gen.paceAt.IsZero() && n > 0 && now.After(a.gen.paceAt) {
		beat := now.Sub(a.gen.paceAt)
		each := beat / time.Duration(n)
		if a.pace == 0 {
			a.pace, a.reportInterval = each, beat
		}
		a.pace += (each - a.pace) / 5
		a.reportInterval += (beat - a.reportInterval) / 5
	}
	a.gen.paceStep, a.gen.paceAt = step, now
}

// TrackRecovery updates the phases of the newest recovery from agents in its generation. TrackRecovery returns the recovery when it is
// complete.
func (a *Account) TrackRecovery(ms *members.Members, g Generation, now time.Time) *Recovery {
	rec := a.last()
	if rec == nil || rec.Generation != g.Number || rec.FirstStep >= 0 {
		return nil
	}
	l, ok := ms.Timeline(rec.Generation, rec.brings)
	if !ok {
		return nil
	}
	before := *rec
	rec.Standbys = l.Standbys
	if at := l.Detected.At; !at.IsZero() && rec.Drain < 0 && rec.Detect < 0 {
		rec.DetectedAt = at
	}
	rec.reach(ms.Parts(), l)
	if !reflect.DeepEqual(*rec, before) {
		a.changed = true
	}
	if rec.FirstStep >= 0 || (rec.Start >= 0 && !l.Notified && !l.Keeps && !a.CountsSteps()) {
		return a.settle(g, now, true)
	}
	return nil
}

// reach sets the duration of each phase. A phase before ranks start is reached once they run, a later one once all n agents have reached
// it. The nodes' clocks differ, so a negative duration becomes 0.
func (r *Recovery) reach(n int, l members.Timeline) {
	halt, restored := l.Halt, l.Restored
	if l.First.N >= n && restored.N < n {
		restored = l.Started // no step was restored from memory
	}
	from := r.DetectedAt.Add(max(0, r.Detect))
	if r.Drain >= 0 {
		from, halt = from.Add(r.Drain), members.Moment{}
	}
	for _, p := range []struct {
		d    *time.Duration
		to   members.Moment
		need int
	}{{&r.Decide, halt, 0}, {&r.Stop, l.Stopped, 0}, {&r.Start, l.Started, n}, {&r.Restore, restored, n}, {&r.FirstStep, l.First, n}} {
		if p.d == &r.Start {
			from = from.Add(max(0, r.Replace) + max(0, r.Fetch) + max(0, r.Check))
		}
		switch {
		case p.to.N < p.need:
			return
		case p.to.N == 0:
			continue
		}
		*p.d = max(0, p.to.At.Sub(from))
		if p.to.At.After(from) {
			from = p.to.At
		}
	}
}

// brings reports whether a pod was created in this recovery.
func (r *Recovery) brings(pod members.Pod) bool {
	return slices.ContainsFunc(r.Replaced, func(o replacements.Replacement) bool { return o.By == pod.Name && o.Pod != pod.UID }) ||
		pod.Created.After(r.DetectedAt)
}

// settle closes the account of the newest recovery and returns it; nil: it was closed. ended: all phases were reached.
func (a *Account) settle(g Generation, now time.Time, ended bool) *Recovery {
	rec := a.last()
	if rec == nil || rec.Closed || rec.Generation > g.Number {
		return nil
	}
	rec.Closed = true
	p := &a.figures
	switch {
	case rec.CostKnown() && (ended || a.stepped(g)):
		p.Lost += a.recomputeTime(rec)
	case !ended && !a.stepped(g) && a.CountsSteps():
		rec.StepsRecomputed = 0 // it ended before it repeated any
	default:
		p.ResumeUnknown++
	}
	rest := rec.Total()
	if rec.Start < 0 {
		rest = max(0, now.Sub(rec.DetectedAt))
	}
	p.Lost += rest
	a.changed = true
	return rec
}

// Phase is a phase of a recovery that was reached.
type Phase struct {
	Name string
	Took time.Duration
}

// Phases returns the phases that were reached, in order: each begins with the end of the one before.
func (r *Recovery) Phases() []Phase {
	all := []Phase{{"detect", r.Detect}, {"drain", r.Drain}, {"decide", r.Decide}, {"stop", r.Stop}, {"replace", r.Replace}, {"fetch", r.Fetch},
		{"check", r.Check}, {"start", r.Start}, {"restore", r.Restore}, {"first step", r.FirstStep}}
	return slices.DeleteFunc(all, func(p Phase) bool { return p.Took < 0 })
}

// Total returns the time from the failure to the last phase that was reached.
func (r *Recovery) Total() (total time.Duration) {
	for _, p := range r.Phases() {
		total += p.Took
	}
	return total
}

// shorten drops released pods beyond the first few: their own label fences them.
func (r *Recovery) shorten(most int) {
	r.ReplacedPods = max(r.ReplacedPods, len(r.Replaced))
	kept := r.Replaced[:0:0]
	for _, o := range r.Replaced {
		if len(kept) < most || o.ReleasedAt.IsZero() {
			kept = append(kept, o)
		}
	}
	r.Replaced = kept
}

// Unreleased reports whether a recovery lists the pod and it is not released from its Job yet.
func Unreleased(recoveries []Recovery) func(pod string) bool {
	pods := map[string]bool{}
	for i := range recoveries {
		for _, o := range recoveries[i].Replaced {
			pods[o.Pod] = o.ReleasedAt.IsZero()
		}
	}
	return func(pod string) bool { return pods[pod] }
}

// Replaced returns the pods that recoveries have replaced or are replacing.
func Replaced(recoveries []Recovery) []replacements.Replacement {
	var all []replacements.Replacement
	for i := range recoveries {
		all = append(all, recoveries[i].Replaced...)
	}
	return all
}
