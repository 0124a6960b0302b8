package elastic

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
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

// current reports whether a slot's report is about the ranks of the newest generation.
func (s *State) current(m *member) bool {
	return m.known && m.report.Generation == s.Record.Generation && (ran(m.report.State) || m.report.State == protocol.StateHalted && s.ranNewest(m))
}

// ranNewest reports whether the pod has said that it ran the newest generation.
func (s *State) ranNewest(m *member) bool { return m.ranIn > 0 && m.ranIn == s.Record.Generation }

func (s *State) trackSealed(now time.Time) {
	if !s.all(s.current) {
		return
	}
	common, reclaimBelow := s.commonStep(), s.reclaimBelow()
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

// commonStep is the newest step that every rank holds sealed; 0: none.
func (s *State) commonStep() int64 {
	first := &s.slots[0].report
	if len(first.Rank) == 0 || first.Ranks == 0 {
		return 0
	}
	for _, p := range slices.Backward(first.Rank[0].Sealed) {
		if s.all(func(m *member) bool { return holdsAll(&m.report, p.Step) }) {
			return p.Step
		}
	}
	return 0
}

// holdsAll says whether every rank of a pod holds a step; one that the agent does not know holds nothing.
func holdsAll(r *protocol.Report, step int64) bool {
	for i := range r.Rank {
		if r.Rank[i].Local != i || !r.Rank[i].Holds(step) {
			return false
		}
	}
	return len(r.Rank) >= r.Ranks
}

// reclaimBelow is the lowest step that may be common one day beside those that are: the lowest of all ranks' newest steps, or
// the one after it where a rank has gone past it without. Arenas of two slots would otherwise be full for good once ranks hold
// different steps beside the common one.
func (s *State) reclaimBelow() int64 {
	low := s.lowestNewest()
	if low > s.run.commonStep && !s.all(func(m *member) bool { return holdsAll(&m.report, low) }) {
		return low + 1
	}
	return low
}

// lowestNewest is the lowest, over all ranks, of each rank's newest step.
func (s *State) lowestNewest() int64 {
	return s.lowest((*protocol.Rank).Newest)
}

// lowest is the lowest, over all ranks, of a step of each; 0 where a rank is not known.
func (s *State) lowest(step func(*protocol.Rank) int64) int64 {
	low := int64(-1)
	for i := range s.slots {
		r := &s.slots[i].report
		if len(r.Rank) < r.Ranks {
			return 0
		}
		for j := range r.Rank {
			if n := step(&r.Rank[j]); low < 0 || n < low {
				low = n
			}
		}
	}
	return max(0, low)
}

func (s *State) trackSteps(now time.Time) {
	low, keeps, running := int64(-1), false, true
	for i := range s.slots {
		m := &s.slots[i]
		if !s.current(m) || len(m.report.Rank) == 0 {
			return
		}
		running = running && ran(m.report.State)
		keeps = keeps || m.report.StateBytes > 0
		for _, k := range m.report.Rank {
			if low < 0 || k.Step < low {
				low = k.Step
			}
		}
	}
	if running && s.run.runningSince.IsZero() {
		s.run.runningSince = s.started(now)
	}
	if s.Record.StartedAt.IsZero() {
		s.Record.StartedAt = s.run.runningSince
		s.emit(PersistLater{})
	}
	notified := s.countsSteps()
	s.count(now)
	if !notified && (low > 0 || s.run.counted.most > 0) {
		s.firstEver()
	}
	if !s.reportsSteps() && low <= 0 && s.run.counted.lowest > 0 {
		s.measure(s.run.counted.lowest, now)
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
	if !keeps {
		s.best(low)
	}
	s.emit(PersistLater{})
}

// started is when the newest generation began to run, as its agents say.
func (s *State) started(now time.Time) time.Time {
	at := now
	for i := range s.slots {
		if t := s.slots[i].report.Timeline.Started; !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
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
	var detected, halt, stopped, started, restored, first moment
	notified, keeps, standbys := false, false, 0
	for i := range s.slots {
		m := &s.slots[i]
		if !s.current(m) || m.report.State == protocol.StateFailed || m.report.State == protocol.StateHalted {
			return // the timeline of one that ended its ranks is of the next recovery
		}
		t := &m.report.Timeline
		detected.earliest(t.Detected)
		if !rec.brings(m.pod) { // a new pod had nothing to halt
			halt.latest(t.HaltReceived)
			stopped.latest(t.Stopped)
		}
		started.latest(t.Started)
		restored.latest(t.Restored)
		first.latest(t.FirstStep)
		notified = notified || !t.Restored.IsZero() || !t.FirstStep.IsZero()
		keeps = keeps || m.report.StateBytes > 0
		for _, k := range m.report.Rank {
			if k.FromStandby {
				standbys++
			}
		}
	}
	before := *rec
	rec.Standbys = standbys
	if !detected.at.IsZero() && rec.Drain < 0 {
		rec.DetectedAt = detected.at
	}
	rec.reach(len(s.slots), halt, stopped, started, restored, first)
	if !reflect.DeepEqual(*rec, before) {
		s.emit(PersistLater{})
	}
	if rec.FirstStep >= 0 || (rec.Start >= 0 && !notified && !keeps && !s.countsSteps()) {
		s.settle(now, true)
	}
}

// moment is the time at which a number of agents had reached something.
type moment struct {
	at time.Time
	n  int
}

func (m *moment) latest(t time.Time) {
	if !t.IsZero() {
		m.n++
		if t.After(m.at) {
			m.at = t
		}
	}
}

func (m *moment) earliest(t time.Time) {
	if !t.IsZero() && (m.at.IsZero() || t.Before(m.at)) {
		m.at = t
	}
}

// reach sets how long each phase took. What happens before ranks start has happened once they run; what
// comes after is reached when all n agents have reached it. Clocks of nodes differ, so that no phase is
// shorter than nothing.
func (r *Recovery) reach(n int, halt, stopped, started, restored, first moment) {
	if first.n >= n && restored.n < n {
		restored = started // nothing was restored from memory
	}
	from := r.DetectedAt
	if r.Drain >= 0 {
		from, halt = from.Add(r.Drain), moment{}
	}
	for _, p := range []struct {
		d    *time.Duration
		to   moment
		need int
	}{{&r.Decide, halt, 0}, {&r.Stop, stopped, 0}, {&r.Start, started, n}, {&r.Restore, restored, n}, {&r.FirstStep, first, n}} {
		if p.d == &r.Start {
			from = from.Add(max(0, r.Replace) + max(0, r.Fetch))
		}
		switch {
		case p.to.n < p.need:
			return
		case p.to.n == 0:
			continue
		}
		*p.d = max(0, p.to.at.Sub(from))
		if p.to.at.After(from) {
			from = p.to.at
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

// refresh brings what people see up to date.
func (s *State) refresh(time.Time) {
	p := &s.Record.Progress
	attached, notes, standbys := []Slot{}, []string{}, 0
	for i := range s.slots {
		m := &s.slots[i]
		if !m.known {
			continue
		}
		if m.attached {
			attached = append(attached, Slot(i))
		}
		for _, n := range m.report.Notes {
			if n = cause.Tail(n, 200); len(notes) < 10 && !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
		for _, k := range m.report.Rank {
			if k.StandbyReady && m.attached {
				standbys++
			}
		}
	}
	if !slices.Equal(attached, p.Attached) || !slices.Equal(notes, p.Notes) || standbys != p.StandbysReady {
		p.Attached, p.Notes, p.StandbysReady = attached, notes, standbys
		s.emit(PersistLater{})
	}
	s.commands()
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
