package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/operators"
)

const (
	// queue is the name of a queue of Volcano's.
	queue = "three-gpus"
	// overQuota is what Volcano writes of a PodGroup that its queue has no room for.
	overQuota = "queue resource quota insufficient"
)

// testVolcanoQueue: of two jobs whose queue has room for one, the second waits with Volcano's reason, also while a pod of the first is
// replaced and a part of the queue is free.
func testVolcanoQueue(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.Volcano)
	openQueue(ctx, t, w)
	first := startStepping(ctx, t, w, "VolcanoJob", "-first", func(spec map[string]any) { spec["queue"] = queue })
	first.settle(ctx, t, 1)
	second := startStepping(ctx, t, w, "Job", "-second", func(spec map[string]any) {
		spec["template"].(map[string]any)["metadata"] = map[string]any{"annotations": map[string]any{handover.QueueKey: queue}}
	})
	why := ""
	until(ctx, t, w.Cluster, "the second waits with Volcano's reason", func(ctx context.Context) (bool, string) {
		c, err := second.waitsFor(ctx)
		if err != nil {
			return false, err.Error()
		}
		why = c.Message
		return c.Reason == v1alpha1.ReasonVolcanoQueued && strings.Contains(c.Message, overQuota), fmt.Sprintf("%+v", c)
	})
	w.Say("  the second waits: %s", why)
	if out, err := w.Holdfast(ctx, "explain", "job/"+second.name, "-n", namespace); !strings.Contains(out, overQuota) {
		t.Errorf("explain does not have Volcano's reason: %v\n%s", err, out)
	}
	first.evict(ctx, t, 1)
	first.replaced(ctx, t, 1)
	if c, err := second.waitsFor(ctx); err != nil || c.Status != metav1.ConditionFalse {
		t.Errorf("after the replacement of a pod of the first the second does not wait: %+v, %v", c, err)
	}
	if bound := second.bound(ctx, t); bound != 0 {
		t.Errorf("%d pods of the second are on nodes", bound)
	}
	removeFirst := []string{"delete", first.resource + "/" + first.name, "-n", namespace, "--wait=false"}
	if _, err := w.RunKubectl(ctx, removeFirst...); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, w.Cluster, "the second is placed once the first is gone", func(ctx context.Context) (bool, string) {
		n := second.bound(ctx, t)
		return n == int(second.pods), fmt.Sprint(n)
	})
	removeAll(ctx, t, w.Cluster, second)
	if _, err := w.RunKubectl(ctx, "delete", "queues.scheduling.volcano.sh", queue); err != nil {
		t.Fatal(err)
	}
}

// openQueue creates the queue with room for one of the jobs, and waits until Volcano has opened it.
func openQueue(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "scheduling.volcano.sh/v1beta1",
		"kind":       "Queue",
		"metadata":   map[string]any{"name": queue},
		"spec":       map[string]any{"weight": 1, "capability": map[string]any{string(layout.GPUResource): "3"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.KubectlIn(ctx, string(text), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.RunKubectl(ctx, "wait", "--for=jsonpath={.status.state}=Open", "queues.scheduling.volcano.sh/"+queue, "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
}

// waitsFor returns the condition that says why the job is not placed.
func (j *stepping) waitsFor(ctx context.Context) (metav1.Condition, error) {
	g, err := j.Gang(ctx, namespace, j.name)
	if err != nil {
		return metav1.Condition{}, err
	}
	if c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionPlaced); c != nil {
		return *c, nil
	}
	return metav1.Condition{}, fmt.Errorf("the Gang has no condition %s", v1alpha1.ConditionPlaced)
}

// bound returns how many of the job's pods are on nodes.
func (j *stepping) bound(ctx context.Context, t *testing.T) (n int) {
	t.Helper()
	members, _, err := j.Members(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.Spec.NodeName != "" {
			n++
		}
	}
	return n
}
