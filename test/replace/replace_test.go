package replace

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestReplace plays all parts on one cluster, because starting one costs more than most of them.
func TestReplace(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: real kubelets need Linux and root")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := install(ctx, t)
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *world)
	}{
		{"Never", testNever},
		{"Storage", testStorage},
		{"NoSpare", testNoSpare},
		{"OnFailure", testOnFailure},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(ctx, t, w) }) {
			w.dump(ctx)
			return // the next part would begin with what this one left
		}
	}
}

// recreated is within what a released pod is to be made anew; thrice that is allowed where the machine has much to do.
const recreated = 2 * time.Second

// sick replaces the pod of a slot by a decision about its node, and heals the node again.
func (w *world) sick(ctx context.Context, t *testing.T, job string, before shape, slot int) shape {
	t.Helper()
	node := before.seats[slot].node
	if err := w.sicken(ctx, node); err != nil {
		t.Fatal(err)
	}
	after, err := w.runs(ctx, job, before.generation+1)
	if err != nil {
		t.Fatal(err)
	}
	w.replacedOnce(ctx, t, job, before, after, slot)
	if after.seats[slot].node == node {
		t.Errorf("the new pod is on %s, too", node)
	}
	if err := w.left(ctx, job, 2); err != nil {
		t.Error(err)
	}
	if err := w.heal(ctx, node); err != nil {
		t.Fatal(err)
	}
	return after
}

// soon demands that places did not stay empty.
func (w *world) soon(t *testing.T, before, n int) {
	t.Helper()
	gaps := w.births.since(before)
	if len(gaps) != n {
		t.Errorf("%d pods were made anew, not %d: %v", len(gaps), n, gaps)
	}
	for _, gap := range gaps {
		if gap > 3*recreated {
			t.Errorf("a place was empty for %s", gap)
		}
	}
	if len(gaps) > 0 {
		w.Say("  %d pods made anew after %s to %s", len(gaps), slices.Min(gaps).Round(time.Millisecond), slices.Max(gaps).Round(time.Millisecond))
	}
}

func (w *world) run(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	if _, err := w.RunKubectl(ctx, args...); err != nil {
		t.Fatal(err)
	}
}

// testNever: eight replacements in a row of one job that may not fail once, then a deleted pod and a drained node.
func testNever(ctx context.Context, t *testing.T, w *world) {
	const job = "never"
	s := w.start(ctx, t, trainJob(job, corev1.RestartPolicyNever, "0.05", nil))
	for i := range 8 {
		s = w.sick(ctx, t, job, s, i%2)
	}
	w.soon(t, 0, 8)

	before := s
	w.run(ctx, t, "delete", "pod", "-n", namespace, "--wait=false", s.seats[0].pod)
	s, err := w.runs(ctx, job, s.generation+1)
	if err != nil {
		t.Fatal(err)
	}
	w.replacedOnce(ctx, t, job, before, s, 0)
	if err := w.left(ctx, job, 2); err != nil {
		t.Error(err)
	}
	w.soon(t, 8, 1)

	before = s
	w.run(ctx, t, "drain", s.seats[1].node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s",
		"--pod-selector="+v1alpha1.LabelGang)
	if s, err = w.runs(ctx, job, s.generation+1); err != nil {
		t.Fatal(err)
	}
	w.replacedOnce(ctx, t, job, before, s, 1)
	w.run(ctx, t, "uncordon", before.seats[1].node)
	w.soon(t, 9, 1)
	w.end(ctx, t, job)
}

// testOnFailure: the same where the kubelet would restart containers.
func testOnFailure(ctx context.Context, t *testing.T, w *world) {
	const job = "on-failure"
	n := len(w.births.since(0))
	s := w.start(ctx, t, trainJob(job, corev1.RestartPolicyOnFailure, "0.05", nil))
	for i := range 2 {
		s = w.sick(ctx, t, job, s, i%2)
	}
	w.soon(t, n, 2)
	w.end(ctx, t, job)
}
