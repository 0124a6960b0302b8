package replace

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// testAgentSilent: during a recovery the agent of another pod hangs, on a healthy node. The Gang names the pod for which the gang waits.
// After two minutes the pod is given up and replaced like the pod of a dead node, although kubelet and Job see no fault.
func testAgentSilent(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const (
		job   = "agent-silent"
		least = 2 * time.Minute
	)
	before := w.start(ctx, t, training{name: job, nodes: nodes, gpus: 1, pause: pause, annotations: inStorage(interval)})
	w.stored(ctx, t, job)
	was, quiet := w.record(ctx, t, job), before.Assignments[1]
	w.stop(ctx, t, quiet.Pod)
	began := time.Now()
	if err := w.Signal(ctx, namespace, before.Assignments[0].Pod, container, syscall.SIGKILL, rank); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "the Gang names the silent pod", func(ctx context.Context) (bool, string) {
		waits := w.record(ctx, t, job).Progress.Waits
		return strings.HasPrefix(waits, v1alpha1.CauseAgentUnreachable) && strings.Contains(waits, quiet.Pod), waits
	})
	w.reported(ctx, t, job, v1alpha1.CauseAgentUnreachable, quiet.Pod)
	given := time.Duration(0)
	w.until(ctx, t, "it is given up", func(ctx context.Context) (bool, string) {
		r := w.record(ctx, t, job)
		given = time.Since(began)
		return len(r.PendingReplacements) == 1 || r.Generation > before.Generation, fmt.Sprintf("%s: %s", r.State, r.Progress.Waits)
	})
	after := w.runs(ctx, t, job, before.Generation+1)
	took := time.Since(began)
	w.replacedOnce(ctx, t, job, before, after, 1)
	r, now := w.last(ctx, t, job), w.record(ctx, t, job)
	w.Say("  an agent that hangs: its pod is given up after %.0f s, trains again after %.0f s, restored step %d", given.Seconds(), took.Seconds(), r.RestoreStep)
	switch {
	case given < least:
		t.Errorf("its pod was given up after %s", given)
	case len(r.Replaced) != 1 || r.Replaced[0].Pod != quiet.Pod || r.Replaced[0].Cause != v1alpha1.CauseAgentUnreachable ||
		!r.Replaced[0].Dead:
		t.Errorf("replaced were %+v", r.Replaced)
	case r.RestoreStep == 0 || now.Restarts != was.Restarts+1 || now.Replacements != was.Replacements+1:
		t.Errorf("restored step %d; %d restarts and %d replacements became %d and %d", r.RestoreStep, was.Restarts, was.Replacements, now.Restarts, now.Replacements)
	}
	if o, err := w.outage(ctx, quiet.Node); err != nil || o.Decision != "" {
		t.Errorf("a decision about a healthy node: %+v, %v", o, err)
	}
	w.left(ctx, t, job, 2)
	w.end(ctx, t, job)
}

// testUnstored: a suspended Job without storage has nothing to copy. Its pods end at once, however long their grace period is, and nothing
// counts as a failure. When the Job is resumed, its script starts from the beginning or from checkpoints of its own.
func testUnstored(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "unstored"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, grace: longGrace})
	w.trains(ctx, t, job, 10)
	was := w.record(ctx, t, job)
	took := w.empties(ctx, t, job, w.suspends(job, true)...)
	w.Say("  suspended without storage: its pods went in %s", took.Round(time.Millisecond))
	if took > atOnce {
		t.Errorf("the pods of a suspended Job took %s to go", took)
	}
	w.run(ctx, t, w.suspends(job, false)...)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.unharmed(ctx, t, job)
	r, now := w.last(ctx, t, job), w.record(ctx, t, job)
	if r.RestoreStep != 0 || after.Generation != before.Generation+1 || now.Restarts != was.Restarts || now.Replacements != was.Replacements {
		t.Errorf("generation %d restored step %d; %d restarts, %d replacements", after.Generation, r.RestoreStep, now.Restarts, now.Replacements)
	}
	w.end(ctx, t, job)
}

// suspends returns the kubectl command that suspends or resumes a Job.
func (w *world) suspends(job string, rests bool) []string {
	return []string{"patch", "job", job, "-n", namespace, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"suspend":%v}}`, rests)}
}
