package replace

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	"time"
)

const (
	longGrace = 600             // seconds
	atOnce    = 2 * time.Minute // much more than pods take that need not wait; much less than pods with longGrace would take if they waited
)

// testSuspended: pods of a suspended Job copy their newest step to storage, and the pods of the resumed Job start from that step. No step
// is repeated, and nothing counts as a failure. The pods of a deleted Job release their nodes at once. Neither uses up a grace period
// without need.
func testSuspended(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "suspended"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, grace: longGrace, annotations: inStorage(10 * time.Minute)})
	w.trains(ctx, t, job, 10)
	was := w.record(ctx, t, job)
	took := w.empties(ctx, t, job, w.suspends(job, true)...)
	rests := w.record(ctx, t, job)
	switch {
	case rests.Durable == nil || rests.Durable.Step < was.Progress.Step:
		t.Fatalf("step %d was done, and stored is %+v", was.Progress.Step, rests.Durable)
	case took > atOnce:
		t.Errorf("the pods of a suspended Job took %s to go", took)
	}
	w.run(ctx, t, w.suspends(job, false)...)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.unharmed(ctx, t, job)
	r, now := w.last(ctx, t, job), w.record(ctx, t, job)
	w.Say(
		"  suspended at step %d, went on at %d, %d steps again; its pods went in %s",
		rests.Durable.Step,
		r.RestoreStep,
		ptr.Deref(r.StepsRecomputed, -1),
		took.Round(time.Millisecond),
	)
	if r.RestoreStep != rests.Durable.Step || ptr.Deref(r.StepsRecomputed, -1) != 0 || after.Generation != before.Generation+1 ||
		now.Restarts != was.Restarts ||
		now.Replacements != was.Replacements {
		t.Errorf("generation %d restored step %d of %d, %d steps were done again; %d restarts, %d replacements",
			after.Generation, r.RestoreStep, rests.Durable.Step, ptr.Deref(r.StepsRecomputed, -1), now.Restarts, now.Replacements)
	}
	if took = w.empties(ctx, t, job, "delete", "job", job, "-n", namespace); took > atOnce {
		t.Errorf("the pods of a deleted Job took %s to go", took)
	}
	w.Say("  deleted: its pods went in %s", took.Round(time.Millisecond))
}

// empties runs a command that ends all pods of a job and returns the time until none is left.
func (w *world) empties(ctx context.Context, t *testing.T, job string, args ...string) time.Duration {
	t.Helper()
	began := time.Now()
	w.run(ctx, t, args...)
	w.until(ctx, t, fmt.Sprintf("no pod of %s is left", job), func(ctx context.Context) (bool, string) {
		members, replaced, err := w.pods(ctx, job)
		return err == nil && len(members)+len(replaced) == 0, fmt.Sprint(len(members), len(replaced), err)
	})
	return time.Since(began)
}
