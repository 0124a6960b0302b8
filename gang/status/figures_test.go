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
		want    int32 // -1: not known
	}{
		{"not started", time.Time{}, start, 0, -1},
		{"just now", start, start, 0, -1},
		{"nothing lost", start, start.Add(time.Hour), 0, 100},
		{"hardly anything lost", start, start.Add(1000 * time.Hour), time.Millisecond, 99},
		{"a little lost", start, start.Add(1000 * time.Second), 14 * time.Second, 98},
		{"a round figure", start, start.Add(100 * time.Second), 43 * time.Second, 57},
		{"more lost than there was", start, start.Add(time.Second), time.Minute, 0},
	} {
		got := int32(-1)
		if share, ok := goodput(c.started, c.until, c.lost); ok {
			got = percent(share)
		}
		if got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// The step in the status is the one that the script reports. If the script reports none, the step is computed from the optimizer's state.
func TestFigures(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	now := time.Unix(1_700_000_100, 0)
	started := metav1.NewMicroTime(now.Add(-100 * time.Second))
	for name, tc := range map[string]struct {
		run     v1alpha1.RunStatus
		step    int64
		goodput int32 // -1: not known
	}{
		"the script tells it": {v1alpha1.RunStatus{Progress: v1alpha1.Progress{Step: 12, OptimizerSteps: 48, ResumedAt: n(0), LostMs: 10_000}}, 12, 90},
		"it stands still since a minute": {v1alpha1.RunStatus{Progress: v1alpha1.Progress{Step: 12, LostMs: 10_000,
			Standstill: &v1alpha1.Standstill{Verdict: "Hang", Since: metav1.NewMicroTime(now.Add(-time.Minute))}}}, 12, 30},
		"it works since a minute": {v1alpha1.RunStatus{Progress: v1alpha1.Progress{Step: 12, LostMs: 10_000,
			Standstill: &v1alpha1.Standstill{Verdict: "Busy", Since: metav1.NewMicroTime(now.Add(-time.Minute))}}}, 12, 90},
		"the optimizer tells it":            {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumedAt: n(100)}}, 148, 100},
		"unknown where it began":            {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48}}, 0, 100},
		"unknown where it continued":        {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumeUnknown: 1}}, 0, -1},
		"it was known once, and is again":   {v1alpha1.RunStatus{Progress: v1alpha1.Progress{OptimizerSteps: 48, ResumedAt: n(100), ResumeUnknown: 1}}, 148, -1},
		"before the first step of this one": {v1alpha1.RunStatus{Recoveries: []v1alpha1.Recovery{{ReachedStep: n(90)}, {ReachedStep: n(120)}}}, 120, 100},
	} {
		tc.run.StartedAt = &started
		s := v1alpha1.GangStatus{GoodputPercent: ptr.To(int32(7))}
		Figures(&s, &v1alpha1.GangSpec{}, &tc.run, now)
		share, known := Goodput(&tc.run, now)
		if s.Step != tc.step || ptr.Deref(s.GoodputPercent, -1) != tc.goodput || known != (tc.goodput >= 0) {
			t.Errorf("%s: step %d, goodput %v (%v, %v)", name, s.Step, s.GoodputPercent, share, known)
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
	Figures(&s, &v1alpha1.GangSpec{}, run, start.Add(24*time.Hour))
	if s.Step != 10 || s.SavedStep != 9 || !s.SavedAt.Equal(&metav1.Time{Time: start.Add(50 * time.Second)}) ||
		ptr.Deref(s.GoodputPercent, -1) != 90 {
		t.Errorf("%+v", s)
	}
	Figures(&s, &v1alpha1.GangSpec{}, nil, start)
	if share, ok := Goodput(run, start.Add(24*time.Hour)); !ok || share != 0.9 {
		t.Errorf("goodput %v, %v", share, ok)
	}
	if _, ok := Goodput(nil, start); ok {
		t.Error("a gang that never ran has a goodput")
	}
}

// TestCapacity: the share of pods that take part counts over the time since the first start; what comes before does not.
func TestCapacity(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) *metav1.MicroTime {
		return &metav1.MicroTime{Time: start.Add(time.Duration(s) * time.Second)}
	}
	now := at(100).Time
	for name, c := range map[string]struct {
		least int32
		run   v1alpha1.RunStatus
		want  int32 // -1: unknown
	}{
		"all pods needed":     {0, v1alpha1.RunStatus{StartedAt: at(0)}, -1},
		"not started":         {1, v1alpha1.RunStatus{}, -1},
		"always all":          {1, v1alpha1.RunStatus{StartedAt: at(0)}, 100},
		"was without one":     {1, v1alpha1.RunStatus{StartedAt: at(0), Sizes: &v1alpha1.RunSizes{AbsentMs: 40_000}}, 90},
		"is without two":      {1, v1alpha1.RunStatus{StartedAt: at(0), Out: []int32{1, 2}, Sizes: &v1alpha1.RunSizes{AbsentMs: 40_000, Since: at(60)}}, 70},
		"began without one":   {1, v1alpha1.RunStatus{StartedAt: at(50), Out: []int32{1}, Sizes: &v1alpha1.RunSizes{Since: at(40)}}, 75},
		"over, with fewer":    {1, v1alpha1.RunStatus{StartedAt: at(0), Out: []int32{1}, Sizes: &v1alpha1.RunSizes{Since: at(60)}, Verdict: &v1alpha1.Verdict{At: *at(80)}}, 93},
		"ends as it starts":   {1, v1alpha1.RunStatus{StartedAt: at(100)}, -1},
		"struck sizes, whole": {1, v1alpha1.RunStatus{StartedAt: at(0), Sizes: &v1alpha1.RunSizes{Retried: 1}}, 100},
	} {
		s := v1alpha1.GangStatus{CapacityPercent: ptr.To(int32(7))}
		if Figures(&s, &v1alpha1.GangSpec{Members: 4, MinPods: c.least}, &c.run, now); ptr.Deref(s.CapacityPercent, -1) != c.want {
			t.Errorf("%s: %d, want %d", name, ptr.Deref(s.CapacityPercent, -1), c.want)
		}
	}
}
