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

// part is one case. It may use the nodes in its arguments, and must leave them healthy.
type part struct {
	name string
	test func(context.Context, *testing.T, *world, []string)
}

// lane is a sequence of cases with its own nodes, which no other lane uses.
type lane struct {
	name  string
	nodes []string
	parts []part
}

// The control plane runs only on the first two nodes of a cluster, so that other cases do not break it.
const control = 2

// TestReplace plays, on one cluster, the cases that need the control plane all the time. Starting a cluster takes longer than most cases.
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

// TestControlPlane plays the cases in which the control plane is unavailable. No other case could run beside them. Most of their time is
// waiting.
func TestControlPlane(t *testing.T) {
	play(t, "control", 5, [][]lane{
		{{"a", []string{"n1", "n2", "n3"}, []part{{"Leaders", testLeaders}, {"LeaderDrained", testLeaderDrained}}}},
		{{"a", []string{"n3", "n4", "n5", "n1", "n2"}, []part{{"Away", testAway}}}},
	})
}

// play plays stages one after another on a new cluster: the lanes of a stage in parallel, and beside all of them the long cases.
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
			wg.Go(func() { w.play(ctx, t, l) }) // t.Parallel would run only as many lanes as there are cores
		}
		wg.Wait()
		if t.Failed() {
			return // the next parts would start from a broken state
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
	// recreated bounds the time until a released pod is re-created. The fastest of several replacements must keep it, because the machine
	// may be busy.
	recreated = 2 * time.Second
	// backOff is the Job controller's shortest wait after a counted failure.
	backOff = 10 * time.Second
)

// sick makes the node of a slot's pod sick, so that the pod is replaced, and makes the node healthy again.
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

// soon checks that n slots of a job became empty, and that none was empty for as long as the Job controller's shortest wait after a counted
// failure.
func (w *world) soon(t *testing.T, job string, n int) {
	t.Helper()
	gaps := w.slotGaps.of(job)
	if len(gaps) != n {
		t.Errorf("%d pods were re-created, not %d: %v", len(gaps), n, gaps)
	}
	for _, gap := range gaps {
		if gap >= backOff {
			t.Errorf("a place was empty for %s", gap)
		}
	}
	if len(gaps) > 0 {
		if least := slices.Min(gaps); least > recreated {
			t.Errorf("all slots were empty for %s and more: %v", least, gaps)
		}
		w.Say("  %s: %d pods re-created after %s to %s", job, len(gaps), slices.Min(gaps).Round(time.Millisecond), slices.Max(gaps).Round(time.Millisecond))
	}
}

func (w *world) run(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	if _, err := w.RunKubectl(ctx, args...); err != nil {
		t.Fatal(err)
	}
}

// testNever: in a job without backoffLimit six pods are replaced one after another, then a pod is deleted and a node is drained. The Job
// controller's wait doubles with each counted failure: at the fifth it would be more than two minutes.
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

// testOnFailure does what testNever does, with a restart policy by which the kubelet restarts containers.
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
