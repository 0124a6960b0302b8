package replace

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

// testYields: a job of higher priority needs the nodes of a training job. The training job is preempted as a whole, after its newest step
// was copied to storage, although no copy was due. It waits as long as the other job runs, shows why, and then resumes. No step is
// repeated, and nothing counts as a failure.
func testYields(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job, other, class = "yields", "urgent", "replace-urgent"
	nodes = nodes[:2]
	w.run(ctx, t, "create", "priorityclass", class, "--value=1000")
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, grace: longGrace, annotations: inStorage(10 * time.Minute)})
	w.trains(ctx, t, job, 10)
	was := w.record(ctx, t, job)
	began := time.Now()
	urgent := w.start(ctx, t, training{name: other, nodes: nodes, pause: pause, priority: class})
	took := time.Since(began)
	if urgent.Assignments[0].Node == urgent.Assignments[1].Node {
		t.Errorf("%s has both pods on %s", other, urgent.Assignments[0].Node)
	}
	w.left(ctx, t, job, 2) // the new ones
	w.until(ctx, t, "the one that left says that it waits, and for what", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil || g.Status.Placement == nil {
			return false, fmt.Sprint(err)
		}
		p, text := g.Status.Placement, harness.Says(g)
		return !p.Placed && p.Wanted == 2 && p.Fits == 0 && g.Status.Phase == v1alpha1.PhaseRecovering && strings.Contains(text, "waits for a node; the scheduler reports: "),
			fmt.Sprintf("%s: %s: %+v", g.Status.Phase, text, *p)
	})
	w.trains(ctx, t, other, 10)
	w.untouched(ctx, t, other, urgent)
	w.end(ctx, t, other)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 0, 1)
	r, now := w.last(ctx, t, job), w.record(ctx, t, job)
	w.Say(
		"  left at step %d or later, went on at %d, %d steps again; the other trained after %s",
		was.Progress.Step,
		r.RestoreStep,
		ptr.Deref(r.StepsRecomputed, -1),
		took.Round(time.Millisecond),
	)
	if r.RestoreStep < was.Progress.Step || ptr.Deref(r.StepsRecomputed, -1) != 0 || now.Restarts != was.Restarts ||
		now.Replacements != was.Replacements+2 {
		t.Errorf("at step %d it was preempted; restored step %d, %d steps were done again; %d restarts and %d replacements became %d and %d",
			was.Progress.Step, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), was.Restarts, was.Replacements, now.Restarts, now.Replacements)
	}
	w.end(ctx, t, job)
	w.run(ctx, t, "delete", "priorityclass", class)
}
