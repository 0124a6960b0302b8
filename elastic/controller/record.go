package controller

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/elastic/waiting"
	"holdfast.dev/holdfast/internal/protocol"
)

// runStatus is a record as a Gang shows it. recordOf is its inverse, to the microsecond and, for lengths of
// time, to the millisecond.
func runStatus(r elastic.Record) v1alpha1.RunStatus {
	s := v1alpha1.RunStatus{
		Generation:    r.Generation,
		RestoreStep:   r.RestoreStep,
		Branch:        r.Branch,
		RestoreBranch: r.RestoreBranch,
		Restarts:      int32(r.Restarts),
		StartedAt:     microTime(r.StartedAt),
		Replacements: int32(
			r.Replacements,
		),
		WithoutProgress: int32(r.WithoutProgress),
		Unproven:        int32(r.Unproven),
		Hangs:           int32(r.Hangs),
		BestStep:        r.BestStep,
		State:           v1alpha1.RunState(r.Phase),
		Progress: v1alpha1.Progress{
			Ranks:         int32(r.Progress.Ranks),
			StandbysReady: int32(r.Progress.StandbysReady),
			Step:          r.Progress.Step,
			SavedStep:     r.Progress.SavedStep,
			SavedAt:       microTime(r.Progress.SavedAt),
			LostMs:        r.Progress.Lost.Milliseconds(),
			Notes:         r.Progress.Notes,
			Waits:         r.Progress.Waits,
			Fewer:         r.Progress.Fewer,
			ResumeUnknown: int32(
				r.Progress.ResumeUnknown,
			),
			OptimizerSteps:   r.Progress.OptimizerSteps,
			ResumedAt:        known(r.Progress.ResumedAt, r.Progress.ResumeKnown),
			StepMicros:       r.Progress.StepTime.Microseconds(),
			UnprotectedPods:  int32(r.Progress.UnprotectedPods),
			WholeCommand:     r.Progress.WholeCommand,
			LongestSilenceMs: r.Progress.LongestSilence.Milliseconds(),
			Standstill:       standstill(r.Progress.Standstill),
		},
	}
	for _, slot := range r.Progress.Attached {
		s.Progress.Attached = append(s.Progress.Attached, int32(slot))
	}
	for _, u := range r.Progress.Unprotected {
		s.Progress.Unprotected = append(s.Progress.Unprotected, v1alpha1.UnprotectedPod{Slot: int32(u.Slot), Pod: u.Pod, Runs: u.Runs})
	}
	for _, rec := range r.Recoveries {
		s.Recoveries = append(s.Recoveries, v1alpha1.Recovery{
			Generation: rec.Generation,
			Cause:      causeStatus(rec.Cause),
			DetectedAt: metav1.NewMicroTime(rec.DetectedAt),
			DecideMs: millis(
				rec.Decide,
			),
			StopMs:      millis(rec.Stop),
			StartMs:     millis(rec.Start),
			RestoreMs:   millis(rec.Restore),
			FirstStepMs: millis(rec.FirstStep),
			RestoreStep: rec.RestoreStep,
			StepsRecomputed: known(
				rec.StepsRecomputed,
				rec.CostKnown(),
			),
			Standbys:    int32(rec.Standbys),
			Ranks:       int32(rec.Ranks),
			RanksBefore: int32(rec.RanksBefore),
			DetectMs:    millis(rec.Detect),
			DrainMs: millis(
				rec.Drain,
			),
			ReplaceMs:    millis(rec.Replace),
			FetchMs:      millis(rec.Fetch),
			CheckMs:      millis(rec.Check),
			Replaced:     replacementsStatus(rec.Replaced),
			ReplacedPods: int32(rec.ReplacedPods),
			Waited:       waited(rec.Waited),
			EndedAfter:   rec.EndedAfter,
			ReachedStep:  known(rec.Reached, rec.ReachedKnown),
			ResumedAt:    known(rec.ResumedAt, rec.ResumeKnown),
			Closed:       rec.Closed,
		})
	}
	if l := r.Launch; l.Number > 1 || len(l.Kept) > 0 {
		s.Launch = &v1alpha1.RunLaunch{Number: int32(max(1, l.Number)), After: l.After, Restarts: int32(l.Restarts)}
		for _, d := range l.Kept {
			s.Launch.Kept = append(s.Launch.Kept, *stored(&d))
		}
	}
	for _, slot := range r.Left {
		s.Left = append(s.Left, int32(slot))
	}
	for _, slot := range r.Out {
		s.Out = append(s.Out, int32(slot))
	}
	s.Sizes = sizesStatus(r.Sizes)
	for _, w := range r.Worlds {
		s.Worlds = append(s.Worlds, v1alpha1.RunWorld{Until: w.Until, Ranks: int32(w.Ranks)})
	}
	for _, b := range r.Branches {
		s.Branches = append(s.Branches, v1alpha1.BranchStart(b))
	}
	s.Durable, s.Older = stored(r.Durable), stored(r.Older)
	for _, d := range r.Kept {
		s.Kept = append(s.Kept, *stored(&d))
	}
	for _, d := range r.Pinned {
		s.Pinned = append(s.Pinned, *stored(&d))
	}
	s.PinWish = r.PinWish
	s.Copies = copies(r.Copies)
	for _, by := range r.Moved {
		s.Moved = append(s.Moved, string(by))
	}
	s.NodeCheck, s.CheckWish = nodeCheckStatus(&r.Check), r.CheckWish
	for _, d := range r.Terminations() {
		s.PendingReplacements = append(s.PendingReplacements, termination(d))
	}
	s.PendingPods = int32(r.PendingPods)
	if v := r.Verdict; v != nil {
		s.Verdict = &v1alpha1.Verdict{Reason: string(v.Reason), ExitCode: int32(v.ExitCode), At: metav1.NewMicroTime(v.At)}
		if v.Cause != nil {
			c := causeStatus(*v.Cause)
			s.Verdict.Cause = &c
		}
	}
	return s
}

// recordOf is what a Gang's status says of its generations.
func recordOf(s *v1alpha1.RunStatus) elastic.Record {
	if s == nil {
		return elastic.Record{}
	}
	r := elastic.Record{
		Generation: s.Generation, RestoreStep: s.RestoreStep, Branch: s.Branch, RestoreBranch: s.RestoreBranch, StartedAt: plainTime(s.StartedAt),
		Budget: elastic.Budget{
			Restarts: int(s.Restarts), WithoutProgress: int(s.WithoutProgress), Unproven: int(s.Unproven), Hangs: int(s.Hangs),
		},
		Replacements: int(s.Replacements), BestStep: s.BestStep, Phase: elastic.Phase(s.State),
		Progress: elastic.Progress{
			Seen: members.Seen{
				Ranks:           int(s.Progress.Ranks),
				StandbysReady:   int(s.Progress.StandbysReady),
				Notes:           s.Progress.Notes,
				UnprotectedPods: int(s.Progress.UnprotectedPods),
				WholeCommand:    s.Progress.WholeCommand,
			},
			Figures: account.Figures{
				Step:           s.Progress.Step,
				SavedStep:      s.Progress.SavedStep,
				SavedAt:        plainTime(s.Progress.SavedAt),
				Lost:           time.Duration(s.Progress.LostMs) * time.Millisecond,
				ResumeUnknown:  int(s.Progress.ResumeUnknown),
				OptimizerSteps: s.Progress.OptimizerSteps,
				ResumedAt:      plain(s.Progress.ResumedAt),
				ResumeKnown:    s.Progress.ResumedAt != nil,
				StepTime:       time.Duration(s.Progress.StepMicros) * time.Microsecond,
			},
			Waits:          s.Progress.Waits,
			Fewer:          s.Progress.Fewer,
			LongestSilence: time.Duration(s.Progress.LongestSilenceMs) * time.Millisecond,
			Standstill:     plainStandstill(s.Progress.Standstill),
		},
	}
	for _, slot := range s.Progress.Attached {
		r.Progress.Attached = append(r.Progress.Attached, elastic.Slot(slot))
	}
	for _, u := range s.Progress.Unprotected {
		r.Progress.Unprotected = append(r.Progress.Unprotected, members.Unprotected{Slot: elastic.Slot(u.Slot), Pod: u.Pod, Runs: u.Runs})
	}
	for _, rec := range s.Recoveries {
		r.Recoveries = append(r.Recoveries, elastic.Recovery{
			Generation: rec.Generation,
			Cause:      plainCause(rec.Cause),
			DetectedAt: rec.DetectedAt.Time,
			Decide: duration(
				rec.DecideMs,
			),
			Stop:            duration(rec.StopMs),
			Start:           duration(rec.StartMs),
			Restore:         duration(rec.RestoreMs),
			FirstStep:       duration(rec.FirstStepMs),
			RestoreStep:     rec.RestoreStep,
			StepsRecomputed: plain(rec.StepsRecomputed),
			Standbys:        int(rec.Standbys),
			Ranks:           int(rec.Ranks),
			RanksBefore:     int(rec.RanksBefore),
			Detect:          duration(rec.DetectMs),
			Drain: duration(
				rec.DrainMs,
			),
			Replace:      duration(rec.ReplaceMs),
			Fetch:        duration(rec.FetchMs),
			Check:        duration(rec.CheckMs),
			Replaced:     plainReplacements(rec.Replaced),
			ReplacedPods: int(rec.ReplacedPods),
			Waited:       plainWaited(rec.Waited),
			EndedAfter:   rec.EndedAfter,
			Reached:      plain(rec.ReachedStep),
			ReachedKnown: rec.ReachedStep != nil,
			ResumedAt:    plain(rec.ResumedAt),
			ResumeKnown:  rec.ResumedAt != nil,
			Closed:       rec.Closed,
		})
	}
	if l := s.Launch; l != nil {
		r.Launch = elastic.Launch{Number: int(l.Number), After: l.After, Restarts: int(l.Restarts)}
		for _, d := range l.Kept {
			r.Launch.Kept = append(r.Launch.Kept, *plainStored(&d))
		}
	}
	for _, slot := range s.Left {
		r.Left = append(r.Left, elastic.Slot(slot))
	}
	for _, slot := range s.Out {
		r.Out = append(r.Out, elastic.Slot(slot))
	}
	r.Sizes = plainSizes(s.Sizes)
	for _, w := range s.Worlds {
		r.Worlds = append(r.Worlds, restore.World{Until: w.Until, Ranks: int(w.Ranks)})
	}
	for _, b := range s.Branches {
		r.Branches = append(r.Branches, restore.Start(b))
	}
	r.Durable, r.Older = plainStored(s.Durable), plainStored(s.Older)
	for _, d := range s.Kept {
		r.Kept = append(r.Kept, *plainStored(&d))
	}
	for _, d := range s.Pinned {
		r.Pinned = append(r.Pinned, *plainStored(&d))
	}
	r.PinWish = s.PinWish
	for _, c := range s.Copies {
		for i := range max(1, c.Ranks) {
			r.Copies = append(
				r.Copies,
				elastic.RankCopy{Rank: int(c.Rank + i), Mark: protocol.Mark{Step: c.Step, Generation: c.Generation, Branch: c.Branch}},
			)
		}
	}
	for _, by := range s.Moved {
		r.Moved = append(r.Moved, cause.Suspect(by))
	}
	r.Check, r.CheckWish = plainNodeCheck(s.NodeCheck), s.CheckWish
	for i := range s.PendingReplacements {
		d := plainTermination(&s.PendingReplacements[i])
		if d.Cause == replacements.JobSuspended {
			r.Suspended = append(r.Suspended, d)
		} else {
			r.PendingReplacements = append(r.PendingReplacements, d)
		}
	}
	r.PendingPods = int(s.PendingPods)
	if v := s.Verdict; v != nil {
		r.Verdict = &elastic.Verdict{Reason: elastic.Reason(v.Reason), ExitCode: int(v.ExitCode), At: v.At.Time}
		if v.Cause != nil {
			c := plainCause(*v.Cause)
			r.Verdict.Cause = &c
		}
	}
	return r
}

// copies puts ranks in a row that have the same step into one entry: a gang may have tens of thousands of ranks.
func copies(all []elastic.RankCopy) []v1alpha1.RankCopy {
	var out []v1alpha1.RankCopy
	for _, c := range all {
		if n := len(out); n > 0 {
			if last := &out[n-1]; last.Step == c.Step && last.Generation == c.Generation && last.Branch == c.Branch &&
				int(last.Rank+max(1, last.Ranks)) == c.Rank {
				last.Ranks = max(1, last.Ranks) + 1
				continue
			}
		}
		out = append(out, v1alpha1.RankCopy{Rank: int32(c.Rank), Step: c.Step, Generation: c.Generation, Branch: c.Branch})
	}
	return out
}

func stored(d *elastic.StoredStep) *v1alpha1.StoredStep {
	if d == nil {
		return nil
	}
	return &v1alpha1.StoredStep{Step: d.Step, Generation: d.Generation, Branch: d.Branch, At: metav1.NewMicroTime(d.At)}
}

func plainStored(d *v1alpha1.StoredStep) *elastic.StoredStep {
	if d == nil {
		return nil
	}
	return &elastic.StoredStep{Mark: protocol.Mark{Step: d.Step, Generation: d.Generation, Branch: d.Branch}, At: d.At.Time}
}

func causeStatus(c cause.Cause) v1alpha1.Cause {
	return v1alpha1.Cause{
		Code:     string(c.Code),
		Rank:     int32(c.Rank),
		Slot:     int32(c.Slot),
		ExitCode: int32(c.ExitCode),
		Message:  c.Message,
		Cascade:  int32(c.Cascade),
		Suspect:  string(c.Suspect),
	}
}

func plainCause(c v1alpha1.Cause) cause.Cause {
	return cause.Cause{
		Code:     cause.Code(c.Code),
		Rank:     int(c.Rank),
		Slot:     int(c.Slot),
		ExitCode: int(c.ExitCode),
		Message:  c.Message,
		Cascade:  int(c.Cascade),
		Suspect:  cause.Suspect(c.Suspect),
	}
}

func termination(d elastic.Termination) v1alpha1.Termination {
	return v1alpha1.Termination{Slot: int32(d.Slot), Pod: d.Name, PodUID: d.Pod, Node: d.Node, Cause: d.Cause, Message: d.Message,
		At: metav1.NewMicroTime(d.At), Deadline: microTime(d.Deadline), Dead: d.Dead}
}

func plainTermination(d *v1alpha1.Termination) elastic.Termination {
	return elastic.Termination{Slot: elastic.Slot(d.Slot), Name: d.Pod, Pod: d.PodUID, Node: d.Node, Cause: d.Cause, Message: d.Message,
		At: d.At.Time, Deadline: plainTime(d.Deadline), Dead: d.Dead}
}

func replacementsStatus(all []elastic.Replacement) []v1alpha1.Replacement {
	var out []v1alpha1.Replacement
	for _, r := range all {
		out = append(
			out,
			v1alpha1.Replacement{
				Termination: termination(r.Termination),
				ReleasedAt:  microTime(r.ReleasedAt),
				By:          r.By,
				NewNode:     r.NewNode,
				AttachedAt:  microTime(r.AttachedAt),
			},
		)
	}
	return out
}

func plainReplacements(all []v1alpha1.Replacement) []elastic.Replacement {
	var out []elastic.Replacement
	for i := range all {
		r := &all[i]
		out = append(
			out,
			elastic.Replacement{
				Termination: plainTermination(&r.Termination),
				ReleasedAt:  plainTime(r.ReleasedAt),
				By:          r.By,
				NewNode:     r.NewNode,
				AttachedAt:  plainTime(r.AttachedAt),
			},
		)
	}
	return out
}

func waited(w members.Waited) *v1alpha1.Waited {
	if w.Ranks == 0 {
		return nil
	}
	return &v1alpha1.Waited{Slot: int32(w.Slot), Ranks: int32(w.Ranks), Ms: w.For.Milliseconds()}
}

func plainWaited(w *v1alpha1.Waited) members.Waited {
	if w == nil {
		return members.Waited{}
	}
	return members.Waited{Slot: elastic.Slot(w.Slot), Ranks: int(w.Ranks), For: time.Duration(w.Ms) * time.Millisecond}
}

func standstill(s elastic.Standstill) *v1alpha1.Standstill {
	if s == (elastic.Standstill{}) {
		return nil
	}
	return &v1alpha1.Standstill{
		Verdict: string(s.Verdict), Since: metav1.NewMicroTime(s.Since), SeenMs: s.Seen.Milliseconds(), Message: s.Text,
		Steps: s.At.Steps, Started: s.At.Started,
	}
}

func plainStandstill(s *v1alpha1.Standstill) elastic.Standstill {
	if s == nil {
		return elastic.Standstill{}
	}
	return elastic.Standstill{
		Verdict: waiting.Kind(s.Verdict), Since: s.Since.Time, Seen: time.Duration(s.SeenMs) * time.Millisecond, Text: s.Message,
		At: elastic.Position{Steps: s.Steps, Started: s.Started},
	}
}

// known is a number that may be absent.
func known(n int64, ok bool) *int64 {
	if !ok {
		return nil
	}
	return &n
}

func plain(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewMicroTime(t)
	return &m
}

func plainTime(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func duration(ms *int64) time.Duration {
	if ms == nil {
		return elastic.NotReached
	}
	return time.Duration(*ms) * time.Millisecond
}
