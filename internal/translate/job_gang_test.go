package translate

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// A replaced pod is no member; that it may not go is still told.
func TestNoteOfARefusedEviction(t *testing.T) {
	pod := func(name, refused string, replaced bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n1"}}
		if refused != "" {
			p.Annotations[v1alpha1.AnnotationEvictionRefused] = refused
		}
		if replaced {
			p.Labels[v1alpha1.LabelReplaced] = "true"
		}
		return p
	}
	got := GatherJobGang(&v1alpha1.Gang{}, &batchv1.Job{}, settings.Job{}, []corev1.Pod{
		pod("goes", "", true), pod("stays", "budget keep needs 2 healthy pods", true), pod("member", "left over", false),
	})
	if want := []string{"pod stays on node n1 was replaced and is still there: it may not be evicted: budget keep needs 2 healthy pods"}; !slices.Equal(got.Notes, want) {
		t.Errorf("notes %q, want %q", got.Notes, want)
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
