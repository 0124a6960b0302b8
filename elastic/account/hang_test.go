package account

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
)

// TestTimeInWhichRanksStoodStill: it is the first phase of the recovery that ends it, is lost once, and is no time in which the generation
// ran.
func TestTimeInWhichRanksStoodStill(t *testing.T) {
	a := New(Recorded{Figures: Figures{StepTime: time.Second}})
	g := Generation{Number: 1}
	a.TrackSteps(members.Steps{Lowest: 10, Running: true}, g, false, start)
	still, ended := start.Add(time.Minute), start.Add(3*time.Minute)
	a.Open(Opening{Cause: cause.Cause{Code: cause.Hang}, EndedAt: ended, DetectedAt: ended.Add(time.Second), StillSince: still}, g)
	rec := a.last()
	if rec.DetectedAt != still || rec.Detect != 2*time.Minute || rec.Total() != 2*time.Minute || !a.Accounted().After(ended) {
		t.Errorf("%+v, exits count up to %s", rec, a.Accounted())
	}
	rec.reach(1, members.Timeline{Stopped: members.Moment{N: 1, At: ended.Add(5 * time.Second)}})
	if rec.Stop != 5*time.Second {
		t.Errorf("the phase after it took %s", rec.Stop)
	}
	a.Began(1, 10, 1, time.Time{}, time.Time{})
	a.BeginGeneration()
	if fail(a, Generation{Number: 2, RestoreStep: 10}, failed("x"), ended.Add(time.Minute)); a.Figures().Lost != 3*time.Minute {
		t.Errorf("lost %s: two minutes of silence, and one until the next failure", a.Figures().Lost)
	}
	if a.NoteStill(time.Minute); a.Figures().Lost != 4*time.Minute || !a.TakeChange() {
		t.Errorf("with a silence that ended by itself %s are lost", a.Figures().Lost)
	}
}

// TestHangsLeft: ranks that stand still restart twice without progress. Any progress allows it again, also one that is counted only when
// the generation ends; the time in which they stood still is none.
func TestHangsLeft(t *testing.T) {
	a := New(Recorded{})
	g := Generation{Number: 1}
	a.TrackSteps(members.Steps{Lowest: 3, Running: true, Keeps: true}, g, false, start)
	if a.NoteHang() || !a.NoteHang() || a.HangsLeft(g, start.Add(time.Hour)) != 0 {
		t.Errorf("after two of them %+v", a.budget)
	}
	if again := New(a.Record()); again.HangsLeft(g, start) != 0 {
		t.Error("the record does not have them")
	}
	if a.NoteCommon(4, start); a.HangsLeft(g, start) != maxHangs || a.Restarts() != 0 {
		t.Errorf("after progress %+v", a.budget)
	}
	a = New(Recorded{Budget: Budget{Hangs: maxHangs}}) // a script that reports no steps
	a.gen.runningSince = start
	if a.HangsLeft(g, start.Add(time.Minute)) != 0 || a.HangsLeft(g, start.Add(longRun)) != maxHangs {
		t.Errorf("%d may follow after a minute, %d after a long run", a.HangsLeft(g, start.Add(time.Minute)), a.HangsLeft(g, start.Add(longRun)))
	}
}

// TestASickNodeRefundsOnlyWhatWasSpent: a hang spends no restart, so its node's fault refunds none.
func TestASickNodeRefundsOnlyWhatWasSpent(t *testing.T) {
	a := New(Recorded{Budget: Budget{Restarts: 3, WithoutProgress: 3}})
	fail(a, Generation{Number: 1}, cause.Cause{Code: cause.Hang, Slot: 0}, start)
	a.Replace(1, replacements.Termination{Slot: 0, Pod: "a", Name: "a", Cause: "XidFatal"}, members.Pod{})
	if rec := a.last(); rec.Cause.Code != cause.PodReplaced || a.Restarts() != 3 {
		t.Errorf("%s after %d restarts", rec.Cause.Code, a.Restarts())
	}
}
