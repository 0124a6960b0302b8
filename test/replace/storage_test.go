package replace

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// interval is how often a step goes to storage in these tests, pause how long a step takes.
const (
	interval = 5 * time.Second
	pause    = 100 * time.Millisecond
)

// last is the newest recovery that a job had.
func (w *world) last(ctx context.Context, t *testing.T, job string) v1alpha1.Recovery {
	t.Helper()
	g, err := w.gang(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	if g.Status.Run == nil || len(g.Status.Run.Recoveries) == 0 {
		t.Fatal("the job had no recovery")
	}
	return g.Status.Run.Recoveries[len(g.Status.Run.Recoveries)-1]
}

// stored waits until a step lies whole in storage.
func (w *world) stored(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	if err := w.Until(ctx, "a step in storage", patience, func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil || g.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		return g.Status.Run.Durable != nil, fmt.Sprintf("%+v", g.Status.Run.Progress)
	}); err != nil {
		t.Fatal(err)
	}
}

// testStorage: a pod that is told in time leaves its newest step in storage, so nothing is done again; of a dead one what was stored
// last is what there is.
func testStorage(ctx context.Context, t *testing.T, w *world) {
	const job = "stored"
	s := w.start(ctx, t, trainJob(job, corev1.RestartPolicyNever, fmt.Sprint(pause.Seconds()), map[string]string{
		v1alpha1.AnnotationStorageClaim: "shared", v1alpha1.AnnotationStorageInterval: interval.String()}))
	w.stored(ctx, t, job)
	s = w.sick(ctx, t, job, s, 1)
	r := w.last(ctx, t, job)
	w.Say("  drained: restored step %d, %d steps again, drain %v ms, replace %v ms, fetch %v ms", r.RestoreStep, r.StepsRecomputed, ms(r.DrainMs), ms(r.ReplaceMs), ms(r.FetchMs))
	if r.StepsRecomputed != 0 || r.RestoreStep == 0 {
		t.Errorf("restored step %d, %d steps were done again", r.RestoreStep, r.StepsRecomputed)
	}

	before := s
	node := s.seats[0].node
	if err := w.cluster.Node(node).Kill(); err != nil {
		t.Fatal(err)
	}
	s, err := w.runs(ctx, job, before.generation+1)
	if err != nil {
		t.Fatal(err)
	}
	w.replacedOnce(ctx, t, job, before, s, 0)
	r = w.last(ctx, t, job)
	w.Say("  dead: restored step %d, %d steps again, replaced %+v", r.RestoreStep, r.StepsRecomputed, r.Replaced)
	// One interval, and the write that was under way, which a busy machine may make long.
	if most := int64(2 * interval / pause); r.RestoreStep == 0 || r.StepsRecomputed > most {
		t.Errorf("restored step %d, %d steps were done again, more than %d", r.RestoreStep, r.StepsRecomputed, most)
	}
	if len(r.Replaced) != 1 || !r.Replaced[0].Dead || r.Replaced[0].Node != node {
		t.Errorf("replaced were %+v", r.Replaced)
	}
	if err := w.left(ctx, job, 2); err != nil {
		t.Error(err)
	}
	if err := w.cluster.Node(node).Revive(); err != nil {
		t.Fatal(err)
	}
	if err := w.heal(ctx, node); err != nil {
		t.Fatal(err)
	}
	w.end(ctx, t, job)
}

func ms(p *int64) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

// testNoSpare: a job whose lost member has no place waits, says who is awaited and why, and goes on when there is one.
func testNoSpare(ctx context.Context, t *testing.T, w *world) {
	const job = "no-spare"
	before := w.start(ctx, t, trainJob(job, corev1.RestartPolicyNever, "0.1", nil))
	spare := ""
	for _, n := range w.cluster.Nodes() {
		if n.Name != before.seats[0].node && n.Name != before.seats[1].node {
			spare = n.Name
		}
	}
	w.run(ctx, t, "cordon", spare)
	sick := before.seats[0].node
	if err := w.sicken(ctx, sick); err != nil {
		t.Fatal(err)
	}
	if err := w.Until(ctx, "the Gang says who waits and why", patience, func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		text := says(g)
		return g.Status.Phase == v1alpha1.PhaseRecovering && strings.Contains(text, "of slot 0 waits for a node; the scheduler says: "), string(g.Status.Phase) + ": " + text
	}); err != nil {
		t.Fatal(err)
	}
	w.run(ctx, t, "uncordon", spare)
	after, err := w.runs(ctx, job, before.generation+1)
	if err != nil {
		t.Fatal(err)
	}
	w.replacedOnce(ctx, t, job, before, after, 0)
	if err := w.heal(ctx, sick); err != nil {
		t.Fatal(err)
	}
	w.end(ctx, t, job)
}
