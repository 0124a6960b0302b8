package elastic

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// track follows what the ranks of the newest generation have sealed, finished and reached.
func (s *State) track(now time.Time) {
	if s.Record.Generation == 0 || s.Final() || s.branching() {
		return
	}
	s.trackSealed(now)
	s.trackSteps(now)
	s.resume()
	s.trackRecovery(now)
}

func (s *State) trackSealed(now time.Time) {
	if !s.members.All(func(m *members.Member) bool { return m.Current(s.Record.Generation) }) {
		return
	}
	common, reclaimBelow := s.members.CommonStep(), s.members.ReclaimBelow(s.run.commonStep)
	if common > s.run.commonStep || reclaimBelow > s.run.reclaimBelow {
		s.emit(Broadcast{})
	}
	s.run.commonStep, s.run.reclaimBelow = max(s.run.commonStep, common), max(s.run.reclaimBelow, reclaimBelow)
	p := &s.Record.Progress
	if s.run.commonStep != p.SavedStep {
		if s.run.commonStep > p.SavedStep {
			p.SavedAt = now
		}
		p.SavedStep = s.run.commonStep
		s.emit(PersistLater{})
	}
	s.best(s.run.commonStep)
}

func (s *State) trackSteps(now time.Time) {
	steps, ok := s.members.Steps(s.Record.Generation)
	if !ok {
		return
	}
	low := steps.Lowest
	if steps.Running && s.run.runningSince.IsZero() {
		s.run.runningSince = now
		if at := steps.Started; !at.IsZero() && at.Before(now) {
			s.run.runningSince = at
		}
	}
	if s.Record.StartedAt.IsZero() {
		s.Record.StartedAt = s.run.runningSince
		s.emit(PersistLater{})
	}
	notified := s.countsSteps()
	s.count(steps.Counted, now)
	if !notified && (low > 0 || s.run.counted.Most > 0) {
		s.firstEver()
	}
	if !s.reportsSteps() && low <= 0 && s.run.counted.Lowest > 0 {
		s.measure(s.run.counted.Lowest, now)
	}
	if s.run.reportedStep > 0 && low > s.run.reportedStep && (s.gap == 0 || low-s.run.reportedStep < s.gap) {
		s.gap = low - s.run.reportedStep
	}
	s.run.reportedStep = max(s.run.reportedStep, low)
	p := &s.Record.Progress
	if low <= 0 || low == p.Step {
		return
	}
	s.measure(low, now)
	p.Step = low
	if !steps.Keeps {
		s.best(low)
	}
	s.emit(PersistLater{})
}

// measure tracks how long a step takes. It starts with the first step of a generation: what comes before is start-up,
// not step time.
func (s *State) measure(step int64, now time.Time) {
	if step <= s.Record.RestoreStep {
		return
	}
	if s.run.drain != nil { // ranks stay, and that is no pace
		s.run.paceAt = time.Time{}
		return
	}
	if n := step - s.run.paceStep; !s.run.paceAt.IsZero() && n > 0 && now.After(s.run.paceAt) {
		beat := now.Sub(s.run.paceAt)
		each := beat / time.Duration(n)
		if s.pace == 0 {
			s.pace, s.reportInterval = each, beat
		}
		s.pace += (each - s.pace) / 5
		s.reportInterval += (beat - s.reportInterval) / 5
	}
	s.run.paceStep, s.run.paceAt = step, now
}

// trackRecovery fills in when the newest recovery reached what, from agents that are in its generation.
func (s *State) trackRecovery(now time.Time) {
	rec := s.lastRecovery()
	if rec == nil || rec.Generation != s.Record.Generation || rec.FirstStep >= 0 {
		return
	}
	l, ok := s.members.Timeline(rec.Generation, rec.brings)
	if !ok {
		return
	}
	before := *rec
	rec.Standbys = l.Standbys
	if at := l.Detected.At; !at.IsZero() && rec.Drain < 0 {
		rec.DetectedAt = at
	}
	rec.reach(s.members.Len(), l)
	if !reflect.DeepEqual(*rec, before) {
		s.emit(PersistLater{})
	}
	if rec.FirstStep >= 0 || (rec.Start >= 0 && !l.Notified && !l.Keeps && !s.countsSteps()) {
		s.settle(now, true)
	}
}

// reach sets how long each phase took. What happens before ranks start has happened once they run; what
// comes after is reached when all n agents have reached it. Clocks of nodes differ, so that no phase is
// shorter than nothing.
func (r *Recovery) reach(n int, l members.Timeline) {
	halt, restored := l.Halt, l.Restored
	if l.First.N >= n && restored.N < n {
		restored = l.Started // nothing was restored from memory
	}
	from := r.DetectedAt
	if r.Drain >= 0 {
		from, halt = from.Add(r.Drain), members.Moment{}
	}
	for _, p := range []struct {
		d    *time.Duration
		to   members.Moment
		need int
	}{{&r.Decide, halt, 0}, {&r.Stop, l.Stopped, 0}, {&r.Start, l.Started, n}, {&r.Restore, restored, n}, {&r.FirstStep, l.First, n}} {
		if p.d == &r.Start {
			from = from.Add(max(0, r.Replace) + max(0, r.Fetch))
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

// brings says whether a pod came with this recovery.
func (r *Recovery) brings(pod Pod) bool {
	return slices.ContainsFunc(r.Replaced, func(o Replacement) bool { return o.By == pod.Name && o.Pod != pod.UID }) || pod.Created.After(r.DetectedAt)
}

// settle closes the account of the newest recovery: what it cost and, where it came to its end, a word to people.
func (s *State) settle(now time.Time, tell bool) {
	rec := s.lastRecovery()
	if rec == nil || rec.Generation <= s.settled || rec.Generation > s.Record.Generation {
		return
	}
	s.settled = rec.Generation
	p := &s.Record.Progress
	switch {
	case rec.CostKnown() && (tell || s.stepped()):
		p.Lost += s.recomputeTime(rec)
	case !tell && !s.stepped() && s.countsSteps():
		rec.StepsRecomputed = 0 // it ended before it did any again
	default:
		p.ResumeUnknown++
	}
	rest := rec.Total()
	if rec.Start < 0 {
		rest = max(0, now.Sub(rec.DetectedAt))
	}
	p.Lost += rest
	s.emit(PersistLater{})
	s.emit(Settled{*rec})
	if tell {
		s.emit(EmitEvent{Notice{Reason: NoticeRecovered, Message: recovered(rec)}})
	}
}

// Total is the time from the failure to the last phase that was reached.
func (r *Recovery) Total() time.Duration {
	total := time.Duration(0)
	for _, d := range []time.Duration{r.Drain, r.Decide, r.Stop, r.Replace, r.Fetch, r.Start, r.Restore, r.FirstStep} {
		total += max(0, d)
	}
	return total
}

func recovering(generation int64, c cause.Cause) string {
	what := string(c.Code)
	if c.Rank >= 0 {
		what += fmt.Sprintf(" of rank %d in slot %d", c.Rank, c.Slot)
	}
	if c.ExitCode != 0 {
		what += fmt.Sprintf(" with exit code %d", c.ExitCode)
	}
	return fmt.Sprintf("generation %d has ended: %s: %s", generation, what, lastLine(c.Message))
}

func recovered(r *Recovery) string {
	parts := []string{}
	for _, p := range []struct {
		name string
		d    time.Duration
	}{{"drain", r.Drain}, {"decide", r.Decide}, {"stop", r.Stop}, {"replace", r.Replace}, {"fetch", r.Fetch}, {"start", r.Start}, {"restore", r.Restore}, {"first step", r.FirstStep}} {
		if p.d >= 0 {
			parts = append(parts, fmt.Sprintf("%s %s", p.name, p.d.Round(time.Millisecond)))
		}
	}
	from := "from the beginning or the script's own checkpoint"
	if r.CostKnown() {
		from = fmt.Sprintf("from step %d, %d steps again", r.ResumedAt, r.StepsRecomputed)
	}
	return fmt.Sprintf("generation %d runs %s after %s of rank %d: %s; %s, %d of %d ranks in a warm standby",
		r.Generation, r.Total().Round(time.Millisecond), r.Cause.Code, r.Cause.Rank, strings.Join(parts, ", "), from, r.Standbys, r.Ranks)
}

func lastLine(s string) string {
	return s[strings.LastIndexByte(s, '\n')+1:]
}
