package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestRefills: the Job is changed once its slot is empty and the earlier pod uses nothing, then at longer and longer intervals.
func TestRefills(t *testing.T) {
	at := func(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		gap  slotGap
		want time.Time
		more bool
	}{
		"gone at once":  {slotGap{since: noon, freed: at(0.5)}, at(2), true},
		"gone late":     {slotGap{since: noon, freed: at(30)}, at(30), true},
		"asked once":    {slotGap{since: noon, freed: at(30), asked: 1, askedAt: at(30)}, at(32), true},
		"asked late":    {slotGap{since: noon, freed: at(30), asked: 1, askedAt: at(50)}, at(52), true},
		"asked twice":   {slotGap{since: noon, freed: at(30), asked: 2, askedAt: at(32)}, at(36), true},
		"asked for all": {slotGap{since: noon, freed: at(30), asked: mostRefills, askedAt: at(60)}, at(92), false},
	} {
		if when, more := c.gap.refill(); !when.Equal(c.want) || more != c.more {
			t.Errorf("%s: %v %v, want %v %v", name, when.Sub(noon), more, c.want.Sub(noon), c.more)
		}
	}
}

// TestAJobIsChangedWhereItsSlotStaysEmpty: the Job is changed whether a quota or something else prevents the next pod.
func TestAJobIsChangedWhereItsSlotStaysEmpty(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p := on(member("b", 1, "n2"))
	b := newBench(t, g, job, p)
	if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	look := func(after time.Duration, pods ...corev1.Pod) (again time.Duration, note string) {
		t.Helper()
		b.noteFilled(key, pods)
		again, err := b.refill(t.Context(), key, pods, since.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.api.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			t.Fatal(err)
		}
		return again, job.Annotations[v1alpha1.AnnotationMadeRoom]
	}
	released := *b.pod(t, "b")
	if again, note := look(10*time.Second, released); again != 0 || note != "" {
		t.Errorf("while the old pod is there: again after %v, annotation %q", again, note)
	}
	ended := *released.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	again, first := look(30*time.Second, ended)
	if again != refillPause || first == "" {
		t.Errorf("when it has ended: again after %v, annotation %q", again, first)
	}
	if again, note := look(31*time.Second, ended); again != refillPause-time.Second || note != first {
		t.Errorf("too soon: again after %v, annotation %q", again, note)
	}
	// If the controller is later than the next pause, it changes the Job again and waits for that pause.
	if again, note := look(40 * time.Second); again != 2*refillPause || note == first {
		t.Errorf("later: again after %v, annotation %q", again, note)
	}
	if again, note := look(time.Minute, member("b2", 1, "")); again != 0 || note == "" || len(b.slotGaps) != 0 {
		t.Errorf("with the next pod: again after %v, %v left", again, b.slotGaps)
	}
}
