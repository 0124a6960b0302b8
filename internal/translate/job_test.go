package translate

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

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

func TestRunStatesAgree(t *testing.T) {
	for _, state := range []v1alpha1.RunState{v1alpha1.RunForming, v1alpha1.RunRunning, v1alpha1.RunHalting, v1alpha1.RunFinished, v1alpha1.RunGivenUp} {
		if runView(&v1alpha1.RunStatus{State: state}).State == gang.RunUnknown {
			t.Errorf("state %s is not translated", state)
		}
	}
}
