package replace

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// testLeaves: a kubelet ends a pod that is not deleted, because its node shuts down gracefully or because memory is short. In both cases
// the pod's state is copied to storage, the pod is replaced, no step is repeated, and the Job counts no failure.
func testLeaves(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "leaves"
	s := w.start(ctx, t, training{name: job, nodes: nodes, grace: enough, pause: pause, annotations: inStorage(interval)})
	w.stored(ctx, t, job)
	shut := s.Assignments[1].Node
	s = w.shutDown(ctx, t, job, s, 1)
	short := s.Assignments[0].Node
	w.evict(ctx, t, job, s, 0)
	w.well(ctx, t, shut, short)
	w.end(ctx, t, job)
}

// shutDown makes the node of a slot announce its shutdown, checks that the pod leaves in time, and cancels the shutdown.
func (w *world) shutDown(ctx context.Context, t *testing.T, job string, before shape, slot int) shape {
	t.Helper()
	node := w.Node(before.Assignments[slot].Node)
	login, err := node.Logind(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer login.Close()
	locks := func(n int) {
		w.until(ctx, t, fmt.Sprintf("the kubelet of %s holds %d locks against a shutdown", node.Name, n), func(context.Context) (bool, string) {
			return login.Locks() == n, fmt.Sprint(login.Locks())
		})
	}
	w.configure(ctx, t, node.Name, map[string]any{"shutdownGracePeriod": fmt.Sprintf("%ds", enough+10), "shutdownGracePeriodCriticalPods": "10s"})
	locks(1)
	// A kubelet that gets the announcement before it has its pods ends none of them, and rejects the pods that it receives then.
	w.until(ctx, t, "the kubelet knows its pods", func(ctx context.Context) (bool, string) {
		text, err := w.RunKubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/pods")
		return err == nil && strings.Contains(text, before.Assignments[slot].UID), fmt.Sprint(err)
	})
	w.untouched(ctx, t, job, before)
	if err := login.PrepareForShutdown(true); err != nil {
		t.Fatal(err)
	}
	after := w.leaves(ctx, t, job, before, slot, v1alpha1.CauseNodeShutdown)
	locks(0) // the shutdown may proceed
	if err := login.PrepareForShutdown(false); err != nil {
		t.Fatal(err)
	}
	w.configure(ctx, t, node.Name, map[string]any{"shutdownGracePeriod": nil, "shutdownGracePeriodCriticalPods": nil})
	return after
}

// evict makes the kubelet of a slot's node measure too little memory. The kubelet then evicts the pod with the grace period of a soft
// eviction.
func (w *world) evict(ctx context.Context, t *testing.T, job string, before shape, slot int) {
	t.Helper()
	node := before.Assignments[slot].Node
	w.configure(ctx, t, node, map[string]any{"evictionSoft": map[string]string{"memory.available": "1Ti"},
		"evictionSoftGracePeriod": map[string]string{"memory.available": "1s"}, "evictionMaxPodGracePeriod": enough})
	w.leaves(ctx, t, job, before, slot, v1alpha1.CauseEvicted)
	w.configure(ctx, t, node, map[string]any{"evictionSoft": nil, "evictionSoftGracePeriod": nil, "evictionMaxPodGracePeriod": nil})
}

// leaves checks that a slot's pod is replaced for a cause, without loss of state.
func (w *world) leaves(ctx context.Context, t *testing.T, job string, before shape, slot int, cause string) shape {
	t.Helper()
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, slot)
	w.left(ctx, t, job, 2)
	w.unharmed(ctx, t, job)
	w.drained(ctx, t, job, cause)
	if r := w.last(ctx, t, job); len(r.Replaced) != 1 || r.Replaced[0].Cause != cause || r.Replaced[0].Dead {
		t.Errorf("replaced were %+v", r.Replaced)
	}
	return after
}

func (w *world) configure(ctx context.Context, t *testing.T, node string, fields map[string]any) {
	t.Helper()
	if err := w.Node(node).ConfigureKubelet(ctx, fields); err != nil {
		t.Fatal(err)
	}
}
