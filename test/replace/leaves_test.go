package replace

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// testLeaves: a kubelet ends a pod that nobody deletes, because its node is shut down gracefully, and because it is short of memory. Both
// go the planned way: what the pod holds is copied to storage, it is replaced, no step is done again, and the Job counts nothing.
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

// shutDown has the node of a slot announce that it shuts down, sees that the pod leaves in time, and takes the shutdown back.
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
	// A kubelet that is told before it knows its pods ends none of them, and rejects those that it hears of.
	w.until(ctx, t, "the kubelet knows its pods", func(ctx context.Context) (bool, string) {
		text, err := w.RunKubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/pods")
		return err == nil && strings.Contains(text, before.Assignments[slot].UID), fmt.Sprint(err)
	})
	w.untouched(ctx, t, job, before)
	if err := login.PrepareForShutdown(true); err != nil {
		t.Fatal(err)
	}
	after := w.leaves(ctx, t, job, before, slot, v1alpha1.CauseNodeShutdown)
	locks(0) // the node may go
	if err := login.PrepareForShutdown(false); err != nil {
		t.Fatal(err)
	}
	w.configure(ctx, t, node.Name, map[string]any{"shutdownGracePeriod": nil, "shutdownGracePeriodCriticalPods": nil})
	return after
}

// evict has the kubelet of a slot's node find that memory is short, after which it evicts the pod with the grace of a soft eviction.
func (w *world) evict(ctx context.Context, t *testing.T, job string, before shape, slot int) {
	t.Helper()
	node := before.Assignments[slot].Node
	w.configure(ctx, t, node, map[string]any{"evictionSoft": map[string]string{"memory.available": "1Ti"},
		"evictionSoftGracePeriod": map[string]string{"memory.available": "1s"}, "evictionMaxPodGracePeriod": enough})
	w.leaves(ctx, t, job, before, slot, v1alpha1.CauseEvicted)
	w.configure(ctx, t, node, map[string]any{"evictionSoft": nil, "evictionSoftGracePeriod": nil, "evictionMaxPodGracePeriod": nil})
}

// leaves demands that the pod of one slot is replaced for a cause, with all it held.
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
