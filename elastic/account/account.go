// Package account records what failures and recoveries cost a gang: the gang's progress, its budget of restarts, and the duration of each
// recovery. Progress refills the budget, and so does the start of another launcher. Each recovery is closed once and counted once. The
// account counts the recoveries for which the number of recomputed steps is unknown.
package account

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
)

// Figures are a gang's progress and its cost, as users see them. They are recorded.
type Figures struct {
	Step      int64
	SavedStep int64
	SavedAt   time.Time
	// Lost is the cost of recoveries. For ResumeUnknown of them the recomputed steps are missing, because the step where training
	// resumed is unknown.
	Lost          time.Duration
	ResumeUnknown int
	// OptimizerSteps is the number that every rank has finished in the newest generation; ResumedAt is the number in the restored state, if
	// ResumeKnown. Scripts that report no step have only these.
	OptimizerSteps int64
	ResumedAt      int64
	ResumeKnown    bool
	// StepTime is the duration of a step before the newest failure; 0: unknown.
	StepTime time.Duration
}

// Recorded is what outlives a coordinator.
type Recorded struct {
	Budget     Budget
	Figures    Figures
	BestStep   int64
	StartedAt  time.Time
	Recoveries []Recovery // oldest first
	// Before is the number of restarts of earlier launchers.
	Before int
	// Moved are the suspects for which a pod was moved.
	Moved []cause.Suspect
}

// Generation is the newest generation, as far as the account uses it.
type Generation struct{ Number, RestoreStep, CommonStep int64 }

// Account is the account of one gang.
type Account struct {
	budget     Budget
	figures    Figures
	bestStep   int64
	startedAt  time.Time
	recoveries []Recovery
	moved      []cause.Suspect
	// before is the number of restarts of earlier launchers.
	before int
	// excused is the number of generations in a row that a port conflict or a launcher's start ended.
	excused int
	// pace is the duration of a step, reportInterval the time from one reported step to the next, which may be many steps later, both
	// smoothed; gap is the fewest steps from one reported step to the next.
	pace, reportInterval time.Duration
	gap                  int64
	// persistedCount is the number of optimizer steps last stored for users, persistedCountAt when.
	persistedCount   int64
	persistedCountAt time.Time
	gen              generation
	// changed: what users see has changed since TakeChange.
	changed bool
}

// generation is the state of the newest generation. The next generation gets a new value, so nothing is reset.
type generation struct {
	// runningSince is when all ranks were first seen running.
	runningSince time.Time
	// counted are the optimizer steps, reportedStep the newest step that all ranks reported.
	counted      members.Counted
	reportedStep int64
	// paceStep and paceAt are the last measurement of the pace.
	paceStep int64
	paceAt   time.Time
}

// What is stored must fit into one object of the API server, so it is bounded for any lifetime of a gang.
const (
	// ReplacedAtOnce limits the pods that are committed and not yet released: the next coordinator must know these.
	ReplacedAtOnce = 128
	// MaxNewest is how many replaced pods the newest recovery lists, MaxReplaced in each other one; MaxRecoveries bounds the
	// recoveries, maxMessage the message of each.
	MaxNewest     = 64
	MaxReplaced   = 8
	MaxRecoveries = 20
	maxMessage    = 700
)

// MaxExcused is how many generations in a row may end by port conflicts and late launchers before they count as failures.
const MaxExcused = 5

// New returns an account from its record.
func New(r Recorded) *Account {
	f := &r.Figures
	a := &Account{
		budget:         r.Budget,
		figures:        r.Figures,
		bestStep:       r.BestStep,
		startedAt:      r.StartedAt,
		recoveries:     slices.Clone(r.Recoveries),
		moved:          r.Moved,
		before:         r.Before,
		persistedCount: f.OptimizerSteps,
		gen: generation{
			counted: members.Counted{Lowest: f.OptimizerSteps, Most: f.OptimizerSteps, ResumedAt: f.ResumedAt, Known: f.ResumeKnown},
		},
	}
	for i := range a.recoveries {
		a.recoveries[i].Replaced = slices.Clone(a.recoveries[i].Replaced)
	}
	return a
}

// Record returns what must be stored; it shares nothing with the account. Of the replaced pods that are out of their Job only the
// first are listed: their own label fences them.
func (a *Account) Record() Recorded {
	recoveries := slices.Clone(a.recoveries)
	for i := range recoveries {
		most := MaxReplaced
		if i == len(recoveries)-1 {
			most = MaxNewest
		}
		recoveries[i].shorten(most)
	}
	return Recorded{
		Budget: a.budget, Figures: a.figures, BestStep: a.bestStep, StartedAt: a.startedAt, Recoveries: recoveries, Before: a.before,
		Moved: slices.Clone(a.moved),
	}
}

// TakeChange reports whether the figures changed since it was last called.
func (a *Account) TakeChange() bool {
	changed := a.changed
	a.changed = false
	return changed
}

// Figures returns the present figures.
func (a *Account) Figures() Figures { return a.figures }

// SealedAt returns when all ranks held a step sealed; zero: unknown.
func (a *Account) SealedAt(step int64) time.Time {
	if a.figures.SavedStep != step {
		return time.Time{}
	}
	return a.figures.SavedAt
}

// StartedAt returns when ranks were first seen running; zero: never.
func (a *Account) StartedAt() time.Time { return a.startedAt }

// RanOnAll reports whether all ranks of the newest generation are known to have run.
func (a *Account) RanOnAll(generation int64) bool {
	if rec := a.last(); rec != nil && rec.Generation == generation {
		return rec.Start >= 0
	}
	return !a.startedAt.IsZero()
}

// Restarts returns the number of all restarts.
func (a *Account) Restarts() int { return a.budget.Restarts }

// LaunchRestarts returns the number of restarts of the gang's launcher.
func (a *Account) LaunchRestarts() int { return a.budget.Restarts - a.before }

// ForgetLaunches counts all restarts for the gang's launcher: the store lost the number of earlier ones.
func (a *Account) ForgetLaunches() { a.before = 0 }

// Pace returns how long steps take.
func (a *Account) Pace() barrier.Pace { return barrier.Pace{Step: a.pace, Interval: a.reportInterval} }

func (a *Account) last() *Recovery {
	if n := len(a.recoveries); n > 0 {
		return &a.recoveries[n-1]
	}
	return nil
}

// open returns the recovery under way; nil: none is.
func (a *Account) open(generation int64) *Recovery {
	if rec := a.last(); rec != nil && rec.Generation > generation {
		return rec
	}
	return nil
}

// Repairs reports whether the failure that ended the newest generation is already in the account.
func (a *Account) Repairs(generation int64) bool { return a.open(generation) != nil }

// Suspended reports whether the newest generation ended because its Job is suspended.
func (a *Account) Suspended(generation int64) bool {
	rec := a.open(generation)
	return rec != nil && rec.Cause.Code == cause.JobSuspended
}

// Accounted returns the time up to which exits belong to the failure that the newest generation repaired.
func (a *Account) Accounted() time.Time {
	rec := a.last()
	switch {
	case rec == nil:
		return time.Time{}
	case rec.Stop < 0:
		return rec.DetectedAt.Add(max(0, rec.Detect) + replacements.HaltTime)
	}
	return rec.DetectedAt.Add(max(0, rec.Detect) + max(0, rec.Drain) + max(0, rec.Decide) + rec.Stop)
}

// CountExcuse reports whether a failure is excused: a port conflict or a late launcher, unless there were too many in a row.
func (a *Account) CountExcuse(c cause.Cause) bool {
	if c.Code != cause.PortConflict && c.Code != cause.LauncherStarted {
		a.excused = 0
		return false
	}
	a.excused++
	return a.excused <= MaxExcused
}

// Spend counts a restart.
func (a *Account) Spend() { a.budget.spend() }

// Opening describes a failure when its recovery begins.
type Opening struct {
	Cause cause.Cause
	// EndedAt is when the generation was ended, DetectedAt when the first agent detected the cause, by its clock.
	EndedAt, DetectedAt time.Time
	// DrainedSince is when the drain before it began; zero: no drain. StillSince is the last sign of life of ranks that stood still then.
	DrainedSince, StillSince time.Time
	Waited                   members.Waited
}

// Open opens the account of a recovery. If the previous one was still open, Open closes and returns it.
func (a *Account) Open(o Opening, g Generation) (closed *Recovery) {
	at, drained, detect, ran := o.DetectedAt, NotReached, NotReached, o.EndedAt
	switch {
	case !o.DrainedSince.IsZero():
		at, drained = o.DrainedSince, o.EndedAt.Sub(o.DrainedSince)
	case !o.StillSince.IsZero():
		at, detect, ran = o.StillSince, max(0, o.EndedAt.Sub(o.StillSince)), o.StillSince
	}
	a.keepPace(cmp.Or(o.StillSince, o.DetectedAt))
	if rec := a.settle(g, o.EndedAt, false); rec != nil {
		copied := *rec
		closed = &copied
	}
	o.Cause.Message = cause.Tail(o.Cause.Message, maxMessage)
	reached, known := a.reached(g, ran)
	if o.Cause.Code == cause.WentBack {
		reached = min(reached, a.figures.Step) // given-up steps are not done again
	}
	for i := range a.recoveries {
		a.recoveries[i].shorten(MaxReplaced)
	}
	a.recoveries = append(a.recoveries, Recovery{
		Generation:   g.Number + 1,
		Cause:        o.Cause,
		DetectedAt:   at,
		Detect:       detect,
		Drain:        drained,
		Decide:       NotReached,
		Stop:         NotReached,
		Replace:      NotReached,
		Fetch:        NotReached,
		Check:        NotReached,
		Start:        NotReached,
		Restore:      NotReached,
		FirstStep:    NotReached,
		EndedAfter:   a.gen.counted.Most,
		Reached:      reached,
		ReachedKnown: known,
		Waited:       o.Waited,
	})
	if n := len(a.recoveries) - MaxRecoveries; n > 0 {
		a.recoveries = slices.Delete(a.recoveries, 0, n)
	}
	return closed
}

// Reopen restarts the account of a suspension when the first pod after it arrives: suspended time is no lost training.
func (a *Account) Reopen(generation int64, created, now time.Time) {
	if rec := a.open(generation); rec != nil && a.Suspended(generation) && created.After(rec.DetectedAt) {
		rec.DetectedAt, rec.Detect, rec.Drain = now, NotReached, NotReached
	}
}

// NoteFetched records how long pods took to fetch the restore step of the next generation.
func (a *Account) NoteFetched(generation int64, took time.Duration) {
	if rec := a.open(generation); rec != nil {
		rec.Fetch = max(0, took)
	}
}

// Repairing returns the cause of the recovery under way; nil: none is.
func (a *Account) Repairing(generation int64) *cause.Cause {
	if rec := a.open(generation); rec != nil {
		return &rec.Cause
	}
	return nil
}

// NoteChecked records how long the node check before the next generation took, with the replacement of pods that it named.
func (a *Account) NoteChecked(generation int64, took time.Duration) {
	if rec := a.open(generation); rec != nil {
		rec.Check = max(0, took)
	}
}

// Began records that the recovery has led to the next generation, with its number of ranks and its restore step (0: none). Phase
// Replace is from halted to ready; zero halted: unknown.
func (a *Account) Began(generation, step int64, ranks int, halted, ready time.Time) {
	rec := a.open(generation)
	if rec == nil {
		return
	}
	if step > 0 {
		rec.ResumedAt, rec.ResumeKnown, rec.StepsRecomputed = step, true, max(0, rec.Reached-step)
	}
	rec.Generation, rec.RestoreStep, rec.Ranks = generation+1, step, ranks
	if len(rec.Replaced) > 0 && !halted.IsZero() {
		rec.Replace = max(0, ready.Sub(halted))
	}
}

// NoteRanksBefore records that the generation after this one, which the recovery has led to, has another number of ranks.
func (a *Account) NoteRanksBefore(generation int64, ranks int) {
	if rec := a.open(generation); rec != nil {
		rec.RanksBefore = ranks
	}
}

// BeginGeneration drops the state of the previous generation.
func (a *Account) BeginGeneration() {
	a.gen = generation{}
	a.figures.OptimizerSteps, a.figures.ResumedAt, a.figures.ResumeKnown = 0, 0, false
}

// BeginLaunch resets the account for another launcher: its ranks continue no earlier training.
func (a *Account) BeginLaunch() {
	a.budget.refill()
	a.before = a.budget.Restarts
	f := &a.figures
	a.bestStep, f.Step, f.SavedStep, f.StepTime = 0, 0, 0, 0
	a.excused, a.pace, a.reportInterval, a.gap = 0, 0, 0, 0
	a.BeginGeneration()
}

// GiveUpAfter withdraws steps after the one from which training continues.
func (a *Account) GiveUpAfter(step int64) {
	a.figures.SavedStep, a.figures.Step = min(a.figures.SavedStep, step), min(a.figures.Step, step)
}

// Unlearn makes steps after this one count as progress again.
func (a *Account) Unlearn(step int64) { a.bestStep = min(a.bestStep, step) }

// failures yields the causes of recoveries that count as failures, newest first.
func (a *Account) failures(yield func(cause.Cause) bool) {
	for _, rec := range slices.Backward(a.recoveries) {
		if !rec.Cause.Uncounted() && !yield(rec.Cause) {
			return
		}
	}
}

// SeenBefore reports whether the same failure was repaired since the last certain progress.
func (a *Account) SeenBefore(c cause.Cause) bool {
	return a.repeated(c, func(*Recovery) bool { return true })
}

// Checked reports whether a node check was made after the same failure, since the last certain progress.
func (a *Account) Checked(c cause.Cause) bool {
	return a.repeated(c, func(rec *Recovery) bool { return rec.Check != NotReached })
}

// repeated reports whether there is a recovery from the same failure since the last certain progress that counts.
func (a *Account) repeated(c cause.Cause, counts func(*Recovery) bool) bool {
	c.Message = cause.Tail(c.Message, maxMessage)
	left := a.budget.sinceSure()
	for i := len(a.recoveries) - 1; i >= 0 && left > 0; i-- {
		rec := &a.recoveries[i]
		if rec.Cause.Uncounted() {
			continue
		}
		if cause.Same(rec.Cause, c) && counts(rec) {
			return true
		}
		left--
	}
	return false
}

// SuspectedBefore reports whether the same hardware was suspected since the last progress.
func (a *Account) SuspectedBefore(by cause.Suspect) bool {
	left := a.budget.WithoutProgress
	for old := range a.failures {
		if left <= 0 {
			return false
		}
		if old.Suspect == by {
			return true
		}
		left--
	}
	return false
}

// restoreTries is how often ranks try to restore a step if each try fails for another reason.
const restoreTries = 3

// FailsToRestore reports whether a step must be given up after a failure to restore it: no generation was restored since the earlier
// failures, these concern the same step, and one of them was the same failure.
func (a *Account) FailsToRestore(step int64, c cause.Cause) bool {
	c.Message = cause.Tail(c.Message, maxMessage)
	for i, tries := len(a.recoveries)-1, 1; i >= 0; i-- {
		rec := &a.recoveries[i]
		switch old := rec.Cause; {
		case rec.Restore != NotReached || rec.FirstStep != NotReached:
			return false
		case old.Code == cause.PortConflict || old.Displaced():
			continue
		case old.Code != cause.RestoreFailed || i > 0 && a.recoveries[i-1].RestoreStep != step:
			return false
		case cause.Same(old, c):
			return true
		}
		if tries++; tries == restoreTries {
			return true
		}
	}
	return false
}

// RestoresAgain reports whether the newest generation ended by a failure to restore.
func (a *Account) RestoresAgain(generation int64) bool {
	rec := a.open(generation)
	return rec != nil && rec.Cause.Code == cause.RestoreFailed
}

// Moved reports whether a pod was already moved for a suspect.
func (a *Account) Moved(by cause.Suspect) bool { return slices.Contains(a.moved, by) }

// NoteMoved records that a pod is moved for a suspect.
func (a *Account) NoteMoved(by cause.Suspect) { a.moved = append(slices.Clone(a.moved), by) }

// MayReplace returns how many more pods may be committed now.
func (a *Account) MayReplace() int {
	left := ReplacedAtOnce
	for i := range a.recoveries {
		for _, r := range a.recoveries[i].Replaced {
			if r.ReleasedAt.IsZero() {
				left--
			}
		}
	}
	return max(0, left)
}

// Replace records a pod's replacement in the open recovery. by is the pod that holds the slot now; the zero Pod: none.
func (a *Account) Replace(generation int64, d replacements.Termination, by members.Pod) {
	rec := a.open(generation)
	rec.ReplacedPods = max(rec.ReplacedPods, len(rec.Replaced)) + 1
	rec.Replaced = append(slices.Clone(rec.Replaced), replacements.Replacement{Termination: d, By: by.Name, NewNode: by.Node})
	a.blame(rec, d)
}

// blame attributes a failure to the node if, during the repair, the node of the rank that failed first is found sick. A pod that the
// coordinator gave up does not mean a sick node, so its restart still counts.
func (a *Account) blame(rec *Recovery, d replacements.Termination) {
	c := &rec.Cause
	if !d.Blames() || members.Slot(c.Slot) != d.Slot || c.Displaced() || c.Code == cause.PortConflict {
		return
	}
	counted := !c.Uncounted()
	c.Message = cause.Tail(d.Where()+": "+d.Why()+"; first observed as: "+string(c.Code)+": "+cause.LastLine(c.Message), maxMessage)
	c.Code = cause.PodReplaced
	if counted {
		a.budget.refund()
	}
}

// NoteReleased records when a pod was released from its Job.
func (a *Account) NoteReleased(pod string, at time.Time) {
	for i := range slices.Backward(a.recoveries) {
		for j := range a.recoveries[i].Replaced {
			if o := &a.recoveries[i].Replaced[j]; o.Pod == pod {
				o.ReleasedAt = at
				return
			}
		}
	}
}

// NoteSuccessor records the pod that takes the slot of replaced ones, and returns the latter.
func (a *Account) NoteSuccessor(slot members.Slot, by members.Pod, now time.Time) (replaced []replacements.Replacement) {
	rec := a.last()
	if rec == nil {
		return nil
	}
	for i := range rec.Replaced {
		r := &rec.Replaced[i]
		if r.Slot != slot || r.Pod == by.UID || !r.AttachedAt.IsZero() {
			continue
		}
		rec.Replaced = slices.Clone(rec.Replaced)
		r = &rec.Replaced[i]
		r.By, r.NewNode, r.AttachedAt = by.Name, by.Node, now
		replaced, a.changed = append(replaced, *r), true
	}
	return replaced
}
