package replace

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// explain is the output of kubectl holdfast explain for a job.
func (w *world) explain(ctx context.Context, t *testing.T, job string) string {
	t.Helper()
	text, err := w.Explain(ctx, namespace, job)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// reported waits until explain prints all the words.
func (w *world) reported(ctx context.Context, t *testing.T, job string, words ...string) {
	t.Helper()
	w.until(ctx, t, fmt.Sprintf("explain says %q", words), func(ctx context.Context) (bool, string) {
		text := w.explain(ctx, t, job)
		flat := strings.Join(strings.Fields(text), " ")
		for _, word := range words {
			if !strings.Contains(flat, word) {
				return false, text
			}
		}
		return true, ""
	})
}

// pending waits until n pods of a job are to be replaced.
func (w *world) pending(ctx context.Context, t *testing.T, job string, n int) {
	t.Helper()
	w.until(ctx, t, fmt.Sprintf("%d pods of %s are to be replaced", n, job), func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		return g.Status.Run != nil && len(g.Status.Run.PendingReplacements) == n, fmt.Sprintf("%+v", g.Status.Run)
	})
}

// testTerminationInRecovery: while the gang is halted because a rank was killed, the node of another pod becomes sick. That pod is replaced
// within the same recovery. The Job counts no failure. The gang counts one restart, for the killed rank.
func testTerminationInRecovery(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "replacement-in-recovery"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	was := w.record(ctx, t, job)
	goOn := w.stop(ctx, t, before.Assignments[1].Pod) // so that the recovery cannot end before the termination
	if err := w.Signal(ctx, namespace, before.Assignments[0].Pod, container, syscall.SIGKILL, rank); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "the failure is being repaired", func(ctx context.Context) (bool, string) {
		r := w.record(ctx, t, job)
		return r.State == v1alpha1.RunHalting, string(r.State)
	})
	sick := before.Assignments[1].Node
	w.sicken(ctx, t, sick)
	w.pending(ctx, t, job, 1)
	goOn()
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 1)
	r := w.record(ctx, t, job)
	if r.Restarts != was.Restarts+1 || r.Replacements != was.Replacements+1 {
		t.Errorf("%d restarts and %d replacements became %d and %d", was.Restarts, was.Replacements, r.Restarts, r.Replacements)
	}
	w.left(ctx, t, job, 2)
	w.heal(ctx, t, sick)
	w.end(ctx, t, job)
}

// testBudget: a user's disruption budget forbids every eviction, and the agent of the pod to be replaced hangs, so that the pod does not
// end by itself. When its time is over, the pod is replaced and left running, and training goes on without it. The Gang shows the reason.
// The pod is evicted once the budget is changed.
func testBudget(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "budgeted"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keep-all"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: job}}},
	}
	if err := w.Client().Create(ctx, budget); err != nil {
		t.Fatal(err)
	}
	// for pods of a Job maxUnavailable allows no eviction
	w.until(ctx, t, "the budget is in force", func(ctx context.Context) (bool, string) {
		err := w.Client().Get(ctx, client.ObjectKeyFromObject(budget), budget)
		return err == nil && len(budget.Status.Conditions) > 0, fmt.Sprint(err)
	})
	kept := before.Assignments[1]
	w.stop(ctx, t, kept.Pod)
	w.sicken(ctx, t, kept.Node)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 1)
	w.reported(ctx, t, job, fmt.Sprintf("pod %s on node %s was replaced but its eviction is refused", kept.Pod, kept.Node), "keep-all")
	w.until(ctx, t, "an event on the Job says so", func(ctx context.Context) (bool, string) {
		events := &corev1.EventList{}
		err := w.Client().List(ctx, events, client.InNamespace(namespace))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == job && e.Reason == v1alpha1.ReasonEvictionRefused && strings.Contains(e.Message, "keep-all")
		}), fmt.Sprint(len(events.Items), err)
	})
	pod := &corev1.Pod{}
	if err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: kept.Pod}, pod); err != nil || string(pod.UID) != kept.UID ||
		pod.DeletionTimestamp != nil {
		t.Errorf("the budget was not respected: %v, pod %s deleted at %v", err, pod.UID, pod.DeletionTimestamp)
	}
	w.trains(ctx, t, job, 10)
	change := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"maxUnavailable":null,"minAvailable":0}}`))
	if err := w.Client().Patch(ctx, budget, change); err != nil {
		t.Fatal(err)
	}
	w.left(ctx, t, job, 2)
	w.until(ctx, t, "the Gang no longer lists it", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		return err == nil && !strings.Contains(fmt.Sprint(g.Status.Notes), kept.Pod), fmt.Sprint(g.Status.Notes)
	})
	w.heal(ctx, t, kept.Node)
	w.end(ctx, t, job)
	if err := w.Client().Delete(ctx, budget); err != nil {
		t.Error(err)
	}
}

// testHealed: if a node is healthy again before its pod had to end, the pod stays. A stopped rank delays the drain for that time.
func testHealed(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "healed"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, annotations: inStorage(10 * time.Minute)})
	node, other := before.Assignments[1].Node, before.Assignments[0].Pod
	if err := w.Signal(ctx, namespace, other, container, syscall.SIGSTOP, rank); err != nil {
		t.Fatal(err)
	}
	w.sicken(ctx, t, node)
	w.pending(ctx, t, job, 1)
	w.heal(ctx, t, node)
	w.pending(ctx, t, job, 0)
	if err := w.Signal(ctx, namespace, other, container, syscall.SIGCONT, rank); err != nil {
		t.Fatal(err)
	}
	w.trains(ctx, t, job, 50) // beyond any hold
	w.untouched(ctx, t, job, before)
	w.end(ctx, t, job)
}

// untouched checks that a job runs unchanged: the same generation, pods and containers.
func (w *world) untouched(ctx context.Context, t *testing.T, job string, before shape) {
	t.Helper()
	after := w.runs(ctx, t, job, before.Generation)
	if after.Generation != before.Generation {
		t.Errorf("%s: generation %d became %d", job, before.Generation, after.Generation)
	}
	for i := range after.Assignments {
		if after.Assignments[i] != before.Assignments[i] {
			t.Errorf("%s: slot %d was to stay as it is: %+v became %+v", job, i, before.Assignments[i], after.Assignments[i])
		}
	}
	w.unharmed(ctx, t, job)
}

// testSilent: a kubelet is dead while the agent on its node reports. Training is not disturbed. The node gets no new pods, and users see
// why.
func testSilent(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "silent"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	node := before.Assignments[1].Node
	if err := w.Node(node).StopKubelet(); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, node+" takes nothing new", func(ctx context.Context) (bool, string) {
		o, err := w.outage(ctx, node)
		return err == nil && o.Decision != "", fmt.Sprintf("%+v %v", o, err)
	})
	if o, err := w.outage(ctx, node); err != nil || o.Decision != v1alpha1.DecisionExclude || o.Cause != v1alpha1.CauseNodeUnreachable ||
		o.Dead {
		t.Errorf("decided was %+v, %v", o, err)
	}
	w.reported(ctx, t, job, v1alpha1.CauseNodeUnreachable+": "+string(v1alpha1.DecisionExclude))
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"}, Spec: corev1.PodSpec{
		Affinity: oneOf(
			[]string{node},
		), TerminationGracePeriodSeconds: ptr.To(int64(0)), SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000))},
		Containers: []corev1.Container{{Name: "sleep", Image: layout.BaseImage, Command: []string{"sleep", "600"}}}}}
	if err := w.Client().Create(ctx, plain); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "another pod is refused there", func(ctx context.Context) (bool, string) {
		err := w.Client().Get(ctx, client.ObjectKeyFromObject(plain), plain)
		for _, c := range plain.Status.Conditions {
			if err == nil && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return strings.Contains(c.Message, "had untolerated taint"), c.Message
			}
		}
		return false, fmt.Sprint(plain.Spec.NodeName, err)
	})
	w.trains(ctx, t, job, 20)
	if err := w.Node(node).StartKubelet(); err != nil {
		t.Fatal(err)
	}
	w.well(ctx, t, node)
	w.untouched(ctx, t, job, before)
	if err := w.Client().Delete(ctx, plain); err != nil {
		t.Error(err)
	}
	w.end(ctx, t, job)
}
