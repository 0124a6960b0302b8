package replace

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/host"
)

// testWhole: all processes of a container are killed at once, init, agent and ranks, as by an out-of-memory kill of the container's group.
// The kubelet restarts the container in its pod by the rules that admission wrote, with the ranks' state in memory. The Job counts no
// failure, and both pods get standbys again.
func testWhole(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const (
		job = "whole"
		// done is the most steps that may be repeated: those that ranks finish between two commonly sealed steps.
		done = 5
	)
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, standbys: true})
	w.standbys(ctx, t, job, 2)
	w.trains(ctx, t, job, 10)
	was := w.record(ctx, t, job)
	for i, slots := range [][]int{{1}, {0, 1}} {
		w.killWhole(ctx, t, before, slots...)
		after := w.runs(ctx, t, job, before.Generation+1)
		w.restarted(ctx, t, job, before, after, slots...)
		r, now := w.last(ctx, t, job), w.record(ctx, t, job)
		w.Say("  containers killed whole: %d; %s; at step %d or later, restored step %d, %d steps again, %d of %d ranks in standbys",
			len(slots), r.Cause.Message, was.Progress.Step, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), r.Standbys, r.Ranks)
		switch {
		case r.Cause.Code != v1alpha1.CauseContainerRestarted:
			t.Errorf("the cause is %+v", r.Cause)
		case r.RestoreStep < was.Progress.SavedStep || ptr.Deref(r.StepsRecomputed, -1) > done:
			t.Errorf("step %d was held in memory; restored step %d, %d steps were done again", was.Progress.SavedStep, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
		case now.Restarts != was.Restarts+1 || now.Replacements != was.Replacements:
			t.Errorf("%d restarts and %d replacements became %d and %d", was.Restarts, was.Replacements, now.Restarts, now.Replacements)
		case i == 0:
			w.reported(ctx, t, job, v1alpha1.CauseContainerRestarted, before.Assignments[1].Pod)
		}
		w.standbys(ctx, t, job, 2)
		w.trains(ctx, t, job, 10) // progress, so that no failure counts twice
		before, was = after, w.record(ctx, t, job)
	}
	w.end(ctx, t, job)
}

// killWhole kills the containers of some slots.
func (w *world) killWhole(ctx context.Context, t *testing.T, s shape, slots ...int) {
	t.Helper()
	var pids []int
	for _, slot := range slots {
		pod := &corev1.Pod{}
		if err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: s.Assignments[slot].Pod}, pod); err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Spec.Containers {
			if c.Name == container && len(c.RestartPolicyRules) == 0 {
				t.Fatalf("pod %s has no rule by which its container would be started again", pod.Name)
			}
		}
		pid, err := w.HostPID(ctx, namespace, pod.Name, container, 1)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		if err := host.KillTogether(pid); err != nil {
			t.Fatal(err)
		}
	}
}

// restarted checks that between two states the containers of some slots were restarted once in their pods, that the other containers went
// on, and that the Job counted no failure.
func (w *world) restarted(ctx context.Context, t *testing.T, job string, before, after shape, slots ...int) {
	t.Helper()
	if after.Generation != before.Generation+1 {
		t.Errorf("generation %d became %d", before.Generation, after.Generation)
	}
	want := shape{Generation: after.Generation, Assignments: append([]assignment{}, before.Assignments...)}
	for _, slot := range slots {
		want.Assignments[slot].Container = after.Assignments[slot].Container
		want.Assignments[slot].Restarts++
		if after.Assignments[slot].Container == before.Assignments[slot].Container {
			t.Errorf("the container of slot %d is the one that was killed", slot)
		}
	}
	for i := range want.Assignments {
		if want.Assignments[i] != after.Assignments[i] {
			t.Errorf("slot %d: %+v became %+v", i, before.Assignments[i], after.Assignments[i])
		}
	}
	w.unharmed(ctx, t, job)
}

// standbys waits until n ranks of a job have a warm standby.
func (w *world) standbys(ctx context.Context, t *testing.T, job string, n int32) {
	t.Helper()
	w.until(ctx, t, fmt.Sprintf("%d ranks of %s have standbys", n, job), func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil || g.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		p := g.Status.Run.Progress
		return p.StandbysReady == n, fmt.Sprintf("%d: %s", p.StandbysReady, strings.Join(p.Notes, "; "))
	})
}
