package replace

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
	"holdfast.dev/holdfast/test/harness"
)

// interval is the interval at which steps are copied to storage in these tests. pause is the duration of a step. enough is a grace period,
// in seconds, in which a pod can copy its state even on a busy machine.
const (
	interval = 5 * time.Second
	pause    = 100 * time.Millisecond
	enough   = 60
)

// last returns a job's newest recovery.
func (w *world) last(ctx context.Context, t *testing.T, job string) v1alpha1.Recovery {
	t.Helper()
	r := w.record(ctx, t, job)
	if len(r.Recoveries) == 0 {
		t.Fatal("the job had no recovery")
	}
	return r.Recoveries[len(r.Recoveries)-1]
}

// stored waits until a step is complete in storage.
func (w *world) stored(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	w.until(ctx, t, "a step in storage", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil || g.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		return g.Status.Run.Durable != nil, fmt.Sprintf("%+v", g.Status.Run.Progress)
	})
}

// mostApart is the most steps between two stored steps: those of one interval and of the write.
const mostApart = int64(interval/pause) * 17 / 10

// nextStored waits until a step later than the given one is complete in storage.
func (w *world) nextStored(ctx context.Context, t *testing.T, job string, step int64) (next int64) {
	t.Helper()
	w.until(ctx, t, "the next step in storage", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		next = g.Status.Run.Durable.Step
		return next > step, fmt.Sprintf("step %d", next)
	})
	return next
}

// storedOften checks that a step is stored in each interval. It counts steps, because a busy machine does fewer steps per second. Since one
// slow write proves nothing, the best of several pairs counts.
func (w *world) storedOften(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	var apart []int64
	for step := w.record(ctx, t, job).Durable.Step; len(apart) == 0 || slices.Min(apart) > mostApart; step += apart[len(apart)-1] {
		if len(apart) == 6 {
			t.Errorf("steps in storage are %v steps apart, not %d", apart, mostApart)
			return
		}
		apart = append(apart, w.nextStored(ctx, t, job, step)-step)
	}
	w.Say("  %s: steps in storage are %v steps apart", job, apart)
}

// inStorage returns the annotations of a job whose steps are stored at that interval.
func inStorage(every time.Duration) map[string]string {
	return map[string]string{v1alpha1.AnnotationStorageClaim: "shared", v1alpha1.AnnotationStorageInterval: every.String()}
}

// testStorage: a pod that terminates with notice, because its node is sick or the pod is deleted, has its newest step copied to storage
// first. So no step is repeated. After the death of a pod training resumes from the last stored step.
func testStorage(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "stored"
	annotations := inStorage(interval)
	annotations[v1alpha1.AnnotationKeepCheckpoints] = "3"
	s := w.start(ctx, t, training{name: job, nodes: nodes, grace: enough, pause: pause, annotations: annotations})
	w.stored(ctx, t, job)
	w.storedOften(ctx, t, job)
	w.verified(ctx, t, job)
	w.pinned(ctx, t, job)
	s = w.sick(ctx, t, job, s, 1)
	w.drained(ctx, t, job, "its node was sick")

	before := s
	w.deletePod(ctx, t, s.Assignments[1].Pod)
	s = w.runs(ctx, t, job, s.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, 1)
	w.left(ctx, t, job, 2)
	w.drained(ctx, t, job, "a user deleted it")

	before = s
	node := s.Assignments[0].Node
	stored := w.nextStored(ctx, t, job, w.record(ctx, t, job).Durable.Step)
	if err := w.Node(node).Kill(); err != nil {
		t.Fatal(err)
	}
	s = w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, 0)
	w.lost(ctx, t, job, node, stored)
	w.left(ctx, t, job, 2)
	if err := w.Node(node).Revive(); err != nil {
		t.Fatal(err)
	}
	w.well(ctx, t, node)
	w.end(ctx, t, job)
}

// verified checks that an agent of the job finds the recorded steps intact in storage while the job trains.
func (w *world) verified(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	for _, verb := range []string{"ls", "verify"} {
		if text, err := w.Holdfast(ctx, "ckpt", verb, "job/"+job, "-n", namespace); err != nil || !strings.Contains(text, "durable") ||
			!strings.Contains(text, "training would go on from step") {
			t.Errorf("ckpt %s: %v\n%s", verb, err, text)
		}
	}
}

// pinned pins a step as a user does. The step then stays while so many newer steps are stored that any other step would be removed. It is
// removed once it is unpinned. The output of the commands matches record and storage.
func (w *world) pinned(ctx context.Context, t *testing.T, job string) {
	t.Helper()
	say := func(verb string, step int64, want string) {
		t.Helper()
		if text, err := w.Holdfast(ctx, "ckpt", verb, "job/"+job, fmt.Sprint(step), "-n", namespace); err != nil || !strings.Contains(text, want) {
			t.Errorf("ckpt %s %d: %v\n%s", verb, step, err, text)
		}
	}
	pin := w.record(ctx, t, job).Durable.Step
	say("pin", pin, "stays in storage until it is unpinned")
	for step, n := pin, 0; n < 4; n++ {
		step = w.nextStored(ctx, t, job, step)
	}
	var report ckpt.Report
	look := func(ctx context.Context) (steps map[int64]ckpt.Step, err error) {
		text, err := w.Holdfast(ctx, "ckpt", "ls", "job/"+job, "-n", namespace, "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &report)
		}
		steps = map[int64]ckpt.Step{}
		for _, f := range report.Folders {
			for _, s := range f.Steps {
				steps[s.Step.Step] = s
			}
		}
		return steps, err
	}
	w.until(ctx, t, "a step is kept beside the two newest", func(ctx context.Context) (bool, string) {
		steps, err := look(ctx) // a newer step may be stored between the two commands
		return err == nil &&
				slices.ContainsFunc(
					slices.Collect(maps.Values(steps)),
					func(s ckpt.Step) bool { return s.Record == ckpt.Kept && s.State == ckpt.Complete },
				), fmt.Sprintf(
				"%+v, %v",
				steps,
				err,
			)
	})
	if steps, err := look(ctx); err != nil || steps[pin].State != ckpt.Complete || steps[pin].Record != ckpt.Pinned || len(report.Wrong) > 0 {
		t.Errorf("step %d is %+v, %v; wrong is %q", pin, steps[pin], err, report.Wrong)
	}
	if text, err := w.Holdfast(ctx, "ckpt", "pin", "job/"+job, "1", "-n", namespace); err == nil || !strings.Contains(text, "those that can be pinned are step ") {
		t.Errorf("a step that was never stored is pinned: %v\n%s", err, text)
	}
	say("unpin", pin, "is not pinned any more")
	w.until(ctx, t, "the unpinned step is removed", func(ctx context.Context) (bool, string) {
		steps, err := look(ctx)
		_, there := steps[pin]
		return err == nil && !there, fmt.Sprintf("%+v, %v", steps[pin], err)
	})
	w.Say("  %s: step %d outlived four newer ones in storage while it was pinned, and went", job, pin)
}

// drained checks that a job's newest recovery cost no step.
func (w *world) drained(ctx context.Context, t *testing.T, job, why string) {
	t.Helper()
	r := w.last(ctx, t, job)
	w.Say("  %s: restored step %d, %d steps again, drain %v ms, replace %v ms, fetch %v ms", why, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), ms(r.DrainMs), ms(r.ReplaceMs), ms(r.FetchMs))
	if r.Cause.Code != v1alpha1.CausePodReplaced || ptr.Deref(r.StepsRecomputed, -1) != 0 || r.RestoreStep == 0 {
		t.Errorf("%s: %+v: restored step %d, %d steps were done again", why, r.Cause, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
	}
}

// lost checks a job's newest recovery, in which one pod was replaced because its node died right after a step was stored. Training resumed
// from that step or a later one, so only later steps were repeated.
func (w *world) lost(ctx context.Context, t *testing.T, job, node string, stored int64) {
	t.Helper()
	r := w.last(ctx, t, job)
	w.Say("  %s: stored was step %d, restored step %d, %d steps again, replaced %+v", job, stored, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), r.Replaced)
	if r.RestoreStep < stored || ptr.Deref(r.StepsRecomputed, -1) > mostApart {
		t.Errorf("stored was step %d, restored step %d, and %d steps were done again, of %d at most", stored, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), mostApart)
	}
	if len(r.Replaced) != 1 || !r.Replaced[0].Dead || r.Replaced[0].Node != node {
		t.Errorf("replaced were %+v", r.Replaced)
	}
}

func ms(p *int64) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

// testNoSpare: a job whose lost member has no node waits, shows for which pod it waits and why, and resumes when there is a node.
func testNoSpare(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "no-spare"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	spare := unused(nodes, before)[0]
	w.run(ctx, t, "cordon", spare)
	sick := before.Assignments[0].Node
	w.sicken(ctx, t, sick)
	w.until(ctx, t, "the Gang says who waits and why", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		text := harness.Says(g)
		return g.Status.Phase == v1alpha1.PhaseRecovering && strings.Contains(text, "of slot 0 waits for a node; the scheduler reports: "), string(g.Status.Phase) + ": " + text
	})
	w.run(ctx, t, "uncordon", spare)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 0)
	w.heal(ctx, t, sick)
	w.end(ctx, t, job)
}

// unused returns the nodes without a pod of the job.
func unused(nodes []string, s shape) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool {
		return slices.ContainsFunc(s.Assignments, func(s assignment) bool { return s.Node == n })
	})
}
