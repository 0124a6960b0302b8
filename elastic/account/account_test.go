package account

import (
	"fmt"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
)

var start = time.Unix(1_700_000_000, 0)

func failed(message string) cause.Cause {
	return cause.Cause{Code: cause.RankFailed, ExitCode: 1, Message: message}
}

// fail ends a generation by a failure, and opens the account of the recovery.
func fail(a *Account, g Generation, c cause.Cause, at time.Time) *Recovery {
	return a.Open(Opening{Cause: c, EndedAt: at, DetectedAt: at}, g)
}

// TestTheRecordStaysSmall: however many pods are replaced, the record lists only some of the completed replacements, and all others.
func TestTheRecordStaysSmall(t *testing.T) {
	const pods = 200
	a := New(Recorded{})
	for round := range int64(30) {
		fail(a, Generation{Number: round}, cause.Cause{Code: cause.PodReplaced, Message: "a node died"}, start)
		for i := range pods {
			pod := fmt.Sprintf("%d-%d", round, i)
			a.Replace(round, replacements.Termination{Pod: pod}, members.Pod{})
			if i < pods-1 { // the last pod is still in its Job
				a.NoteReleased(pod, start)
			}
		}
	}
	reported, all := 0, a.Record().Recoveries
	for i, rec := range all {
		reported += len(rec.Replaced)
		if last := rec.Replaced[len(rec.Replaced)-1].Pod; last != fmt.Sprintf("%d-%d", 10+i, pods-1) || rec.ReplacedPods != pods {
			t.Errorf("recovery %d counts %d pods, and tells of %s last, not of the one that is about to go", i, rec.ReplacedPods, last)
		}
	}
	if len(all) != MaxRecoveries || reported != MaxNewest+1+(MaxRecoveries-1)*(MaxReplaced+1) {
		t.Errorf("%d recoveries tell of %d pods", len(all), reported)
	}
	if left := a.MayReplace(); left != ReplacedAtOnce-MaxRecoveries {
		t.Errorf("%d more may be replaced while %d are", left, MaxRecoveries)
	}
}

// TestProgressRefills: a step newer than any before refills the budget. A limit that a user set is counted separately.
func TestProgressRefills(t *testing.T) {
	a := New(Recorded{Budget: Budget{Restarts: 7, WithoutProgress: 4}, BestStep: 20, Before: 6})
	if left := a.RestartsLeft(0, false); left != 6 {
		t.Errorf("%d restarts are left, want 6", left)
	}
	a.NoteCommon(20, start)
	if a.budget.WithoutProgress != 4 {
		t.Error("a step that was reached before counts as progress")
	}
	if a.NoteCommon(21, start); a.budget.WithoutProgress != 0 || !a.TakeChange() || a.TakeChange() {
		t.Errorf("a new step is no progress: %+v", a.budget)
	}
	a.Spend()
	if left := a.RestartsLeft(5, true); left != 3 {
		t.Errorf("of 5 that people allow this launcher %d are left, want 3: 2 were spent", left)
	}
	if a.BeginLaunch(); a.reportsSteps() || a.budget.WithoutProgress != 0 || a.Restarts() != 8 {
		t.Errorf("another launcher goes on from %+v", a.Record())
	}
}

// TestSeenBefore: the same failure counts as repeated until there is progress, also if other causes that are no failures lie in between.
func TestSeenBefore(t *testing.T) {
	a, c := New(Recorded{}), failed("ValueError: x")
	c.Suspect = cause.SuspectBus
	for i, c := range []cause.Cause{c, {Code: cause.PodReplaced}, failed("KeyError: y")} {
		fail(a, Generation{Number: int64(i)}, c, start)
		if !c.Displaced() {
			a.Spend()
		}
	}
	if a.Checked(c) {
		t.Error("a check that was not made")
	}
	a.last().Check = time.Second
	if !a.Checked(a.last().Cause) || a.Checked(failed("OSError: z")) {
		t.Error("the check after the failure is not known")
	}
	if !a.SeenBefore(c) || !a.SuspectedBefore(cause.SuspectBus) || a.SeenBefore(failed("OSError: z")) {
		t.Error("a failure that was repaired is not known, or one that was not is")
	}
	if a.NoteCommon(1, start); a.SeenBefore(c) || a.SuspectedBefore(cause.SuspectBus) {
		t.Error("a failure before the progress counts as seen")
	}
}

// TestFailsToRestore: a step is given up if the same failure to restore it occurs twice before all ranks have restored it, however much
// later and whichever pods were replaced since. If each try fails for another reason, the step is given up after three tries.
func TestFailsToRestore(t *testing.T) {
	grew, full := cause.Cause{Code: cause.RestoreFailed, Message: "RestoreError: groups"}, cause.Cause{Code: cause.RestoreFailed, Message: "MemoryError: full"}
	away, displaced := cause.Cause{Code: cause.RestoreFailed, Message: "OSError: away"}, cause.Cause{Code: cause.PodReplaced}
	a := New(Recorded{})
	a.recoveries = []Recovery{{Generation: 1, RestoreStep: 12, Restore: NotReached, FirstStep: NotReached, Cause: failed("killed")}}
	for generation, step := range []struct {
		c        cause.Cause
		begins   int64 // the step that the next generation restores
		restored bool
		want     bool // the step is given up, where grew is the next one
	}{
		{c: grew, begins: 12, want: true},
		{c: displaced, begins: 12, want: true},
		{c: cause.Cause{Code: cause.PortConflict}, begins: 12, want: true},
		{c: grew, begins: 8, want: false},
		{c: away, begins: 8, want: false},
		{c: full, begins: 8, want: true},
		{c: failed("at 13"), begins: 8, want: false},
		{c: grew, begins: 8, want: true},
		{c: displaced, begins: 8, restored: true, want: false},
		{c: displaced, begins: 8, want: false},
	} {
		fail(a, Generation{Number: int64(generation) + 1}, step.c, start)
		rec := a.last()
		if rec.RestoreStep = step.begins; step.restored {
			rec.Restore = time.Second
		}
		if got := a.FailsToRestore(step.begins, grew); got != step.want {
			t.Errorf("after failure %d: %v, want %v", generation, got, step.want)
		}
	}
}

// TestANodeIsToBlame: a failure in the slot of a pod whose node is sick is attributed to the node, and costs no restart.
func TestANodeIsToBlame(t *testing.T) {
	for why, want := range map[string]cause.Code{
		"XidFatal":               cause.PodReplaced,
		replacements.PodDeleted:  cause.RankFailed,
		replacements.HaltTimeout: cause.RankFailed,
	} {
		a := New(Recorded{})
		fail(a, Generation{Number: 1}, failed("CUDA error"), start)
		a.Spend()
		a.Replace(1, replacements.Termination{Slot: 0, Pod: "a", Name: "a", Cause: why}, members.Pod{})
		if rec := a.last(); rec.Cause.Code != want || (a.Restarts() == 0) != (want == cause.PodReplaced) {
			t.Errorf("%s: %s after %d restarts", why, rec.Cause.Code, a.Restarts())
		}
	}
}

// TestEachRecoveryIsCountedOnce: the cost of a recovery is counted when the recovery ends or when the next one begins.
func TestEachRecoveryIsCountedOnce(t *testing.T) {
	a := New(Recorded{Figures: Figures{StepTime: time.Second}})
	g := Generation{Number: 1}
	a.TrackSteps(members.Steps{Lowest: 10, Running: true}, g, false, start)
	fail(a, g, failed("x"), start.Add(time.Minute))
	a.Began(1, 4, 2, time.Time{}, time.Time{})
	a.BeginGeneration()
	g = Generation{Number: 2, RestoreStep: 4}
	a.TrackSteps(members.Steps{Lowest: 5, Running: true}, g, false, start.Add(2*time.Minute))
	if rec := a.last(); rec.Reached != 10 || rec.StepsRecomputed != 6 || !rec.CostKnown() {
		t.Fatalf("%+v", rec)
	}
	closed := fail(a, g, failed("y"), start.Add(3*time.Minute)) // before all had run
	if want := 2*time.Minute + 6*time.Duration(a.Figures().StepTime); closed == nil || a.Figures().Lost != want {
		t.Errorf("closed %t, lost %s, want %s", closed != nil, a.Figures().Lost, want)
	}
	if again := a.settle(g, start.Add(4*time.Minute), false); again != nil {
		t.Errorf("closed again: %+v", again)
	}
}

// TestExcuses: port conflicts and late launchers cost no restart until there are too many in a row.
func TestExcuses(t *testing.T) {
	a, conflict := New(Recorded{}), cause.Cause{Code: cause.PortConflict}
	for i := range MaxExcused {
		if !a.CountExcuse(conflict) {
			t.Errorf("conflict %d is not excused", i)
		}
	}
	if a.CountExcuse(conflict) || a.CountExcuse(failed("x")) || !a.CountExcuse(conflict) {
		t.Error("too many in a row are excused, or what comes after another failure is not")
	}
}
