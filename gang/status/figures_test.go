package status

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestGoodput(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name    string
		started time.Time
		until   time.Time
		lost    time.Duration
		want    string
	}{
		{"not started", time.Time{}, start, 0, ""},
		{"just now", start, start, 0, ""},
		{"nothing lost", start, start.Add(time.Hour), 0, "100.0%"},
		{"a little lost", start, start.Add(1000 * time.Second), 14 * time.Second, "98.6%"},
		{"more lost than there was", start, start.Add(time.Second), time.Minute, "0.0%"},
	} {
		if got := goodput(c.started, c.until, c.lost); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		-time.Second: "0s", 9 * time.Second: "9s", 119 * time.Second: "119s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 72 * time.Hour: "3d",
	} {
		if got := age(now.Add(-ago), now); got != want {
			t.Errorf("%s ago: got %q, want %q", ago, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("never: got %q", got)
	}
}

// The step that people see is the script's own; where it tells none, it follows from what the optimizer's state held.
func TestFigures(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	now := time.Unix(1_700_000_100, 0)
	started := metav1.NewMicroTime(now.Add(-100 * time.Second))
	for name, tc := range map[string]struct {
		run     v1alpha1.RunStatus
		step    int64
		goodput string
	}{
		"the script tells it":               {v1alpha1.RunStatus{Progress: v1alpha1.Progress{Step: 12, OptimizerSteps: 48, ResumedAt: n(0), LostMs: 10_000}}, 12, "90.0%"},
		"the optimizer tells it":            {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumedAt: n(100)}}, 148, "100.0%"},
		"nobody knows where it began":       {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48}}, 0, "100.0%"},
		"nobody knows where it went on":     {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumeUnknown: 1}}, 0, ""},
		"it was known once, and is again":   {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumedAt: n(100), ResumeUnknown: 1}}, 148, ""},
		"before the first step of this one": {v1alpha1.RunStatus{Recoveries: []v1alpha1.Recovery{{ReachedStep: n(90)}, {ReachedStep: n(120)}}}, 120, "100.0%"},
	} {
		tc.run.StartedAt = &started
		s := v1alpha1.GangStatus{Goodput: "stale"}
		Figures(&s, &tc.run, now)
		share, known := Goodput(&tc.run, now)
		if s.Step != tc.step || s.Goodput != tc.goodput || known != (tc.goodput != "") {
			t.Errorf("%s: step %d, goodput %q (%v, %v)", name, s.Step, s.Goodput, share, known)
		}
	}
}

func TestFiguresStandStillAfterTheEnd(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(start.Add(d)) }
	run := &v1alpha1.RunStatus{
		StartedAt: ptr.To(at(0)),
		Progress:  v1alpha1.Progress{Step: 10, SavedStep: 9, SavedAt: ptr.To(at(50 * time.Second)), LostMs: 10_000},
		Verdict:   &v1alpha1.Verdict{Reason: v1alpha1.ReasonFinished, At: at(100 * time.Second)},
	}
	var s v1alpha1.GangStatus
	Figures(&s, run, start.Add(24*time.Hour))
	if s.Step != 10 || s.SavedStep != 9 || s.Saved != "50s" || s.Goodput != "90.0%" {
		t.Errorf("%+v", s)
	}
	Figures(&s, nil, start)
	if share, ok := Goodput(run, start.Add(24*time.Hour)); !ok || share != 0.9 {
		t.Errorf("goodput %v, %v", share, ok)
	}
	if _, ok := Goodput(nil, start); ok {
		t.Error("a gang that never ran has a goodput")
	}
}
