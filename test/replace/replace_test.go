package replace

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// part is one case: it may use the nodes that it is given, and leaves them as it found them.
type part struct {
	name string
	test func(context.Context, *testing.T, *world, []string)
}

// lane is a row of cases with nodes of its own. What one lane does to its nodes is none of another's business.
type lane struct {
	name  string
	nodes []string
	parts []part
}

// The control plane runs on the first two nodes of a cluster and nowhere else, so that only the case that means it hits it.
const control = 2

// TestReplace plays on one cluster what needs the control plane to be there all the time: starting one costs more than most cases.
func TestReplace(t *testing.T) {
	play(t, "replace", 9, [][]lane{
		{
			{"a", []string{"n3", "n4", "n5"}, []part{{"Never", testNever}, {"ReplacementInRecovery", testTerminationInRecovery}, {"NoSpare", testNoSpare}, {"OnFailure", testOnFailure}}},
			{"b", []string{"n6", "n7", "n8"}, []part{{"Storage", testStorage}, {"Cut", testCut}, {"Healed", testHealed}}},
			{"c", []string{"n1", "n2"}, []part{{"Silent", testSilent}, {"Suspended", testSuspended}, {"Unstored", testUnstored}, {"Whole", testWhole}}},
		},
		{
			{"a", []string{"n3", "n4", "n5", "n6", "n7"}, []part{{"TwoLost", testTwoLost}, {"NodeGone", testNodeGone}, {"Leaves", testLeaves}}},
			{"b", []string{"n1", "n2", "n8"}, []part{{"Budget", testBudget}, {"Yields", testYields}}},
		},
	}, lane{"d", []string{"n9"}, []part{{"AgentUnreachable", testAgentSilent}}})
}

// TestControlPlane plays the cases that take the control plane away, which nothing beside them would survive: most of each is waiting.
func TestControlPlane(t *testing.T) {
	play(t, "control", 5, [][]lane{
		{{"a", []string{"n1", "n2", "n3"}, []part{{"Leaders", testLeaders}, {"LeaderDrained", testLeaderDrained}}}},
		{{"a", []string{"n3", "n4", "n5", "n1", "n2"}, []part{{"Away", testAway}}}},
	})
}

// play plays stages one after the other on a cluster of its own, the lanes of each side by side, and beside them all what takes long.
func play(t *testing.T, name string, nodes int, stages [][]lane, beside ...lane) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: real kubelets need Linux and root")
	}
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := install(ctx, t, name, nodes)
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range beside {
		all.Go(func() { w.play(ctx, t, l) })
	}
	for _, lanes := range stages {
		var wg sync.WaitGroup
		for _, l := range lanes {
			wg.Go(func() { w.play(ctx, t, l) }) // t.Parallel would play no more of them at a time than there are cores
		}
		wg.Wait()
		if t.Failed() {
			return // the next parts would begin with what these left
		}
	}
}

func (w *world) play(ctx context.Context, t *testing.T, l lane) {
	for _, p := range l.parts {
		began := time.Now()
		ok := t.Run(p.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					w.dump(ctx)
				}
			}()
			p.test(ctx, t, w, l.nodes)
		})
		if !ok {
			return
		}
		w.Say("%s: %.0f s", p.name, time.Since(began).Seconds())
	}
}

const (
	// recreated is within what a released pod is to be made anew: the quickest of several, as the machine may have much to do.
	recreated = 2 * time.Second
	// backOff is what the Job controller waits at least where it counts a failure.
	backOff = 10 * time.Second
)

// sick replaces the pod of a slot by a decision about its node, and heals the node again.
func (w *world) sick(ctx context.Context, t *testing.T, job string, before shape, slot int) shape {
	t.Helper()
	node := before.Assignments[slot].Node
	w.sicken(ctx, t, node)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, slot)
	if after.Assignments[slot].Node == node {
		t.Errorf("the new pod is on %s, too", node)
	}
	w.left(ctx, t, job, 2)
	w.heal(ctx, t, node)
	return after
}

// soon demands that so many places of a job became free, and that none stayed empty for as long as a back-off.
func (w *world) soon(t *testing.T, job string, n int) {
	t.Helper()
	gaps := w.slotGaps.of(job)
	if len(gaps) != n {
		t.Errorf("%d pods were made anew, not %d: %v", len(gaps), n, gaps)
	}
	for _, gap := range gaps {
		if gap >= backOff {
			t.Errorf("a place was empty for %s", gap)
		}
	}
	if len(gaps) > 0 {
		if least := slices.Min(gaps); least > recreated {
			t.Errorf("all places were empty for %s and more: %v", least, gaps)
		}
		w.Say("  %s: %d pods made anew after %s to %s", job, len(gaps), slices.Min(gaps).Round(time.Millisecond), slices.Max(gaps).Round(time.Millisecond))
	}
}

func (w *world) run(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	if _, err := w.RunKubectl(ctx, args...); err != nil {
		t.Fatal(err)
	}
}

// testNever: six replacements in a row of one job that may not fail once, then a deleted pod and a drained node. The Job
// controller's own back-off doubles with each failure that it counts: at the fifth it would be more than two minutes.
func testNever(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "never"
	s := w.start(ctx, t, training{name: job, nodes: nodes, pause: 50 * time.Millisecond})
	for i := range 6 {
		s = w.sick(ctx, t, job, s, i%2)
	}
	before := s
	w.deletePod(ctx, t, s.Assignments[0].Pod)
	s = w.runs(ctx, t, job, s.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, 0)
	w.left(ctx, t, job, 2)

	before = s
	w.run(ctx, t, "drain", s.Assignments[1].Node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s",
		"--pod-selector="+v1alpha1.LabelGang)
	s = w.runs(ctx, t, job, s.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, 1)
	w.run(ctx, t, "uncordon", before.Assignments[1].Node)
	w.soon(t, job, 8)
	w.end(ctx, t, job)
}

// testOnFailure: the same where the kubelet would restart containers.
func testOnFailure(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "on-failure"
	s := w.start(ctx, t, training{name: job, nodes: nodes, pause: 50 * time.Millisecond, policy: corev1.RestartPolicyOnFailure})
	for i := range 2 {
		s = w.sick(ctx, t, job, s, i%2)
	}
	w.soon(t, job, 2)
	w.end(ctx, t, job)
}

func (w *world) deletePod(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = namespace, name
	if err := w.Client().Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}
