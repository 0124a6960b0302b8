package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/coordinator"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
)

// passWriters bounds concurrent writes of one gang's passes.
const passWriters = 4

func nodeCheckStatus(c *elastic.Check) *v1alpha1.NodeCheck {
	if c.Before == 0 {
		return nil
	}
	return &v1alpha1.NodeCheck{
		Generation: c.Before, StartedAt: metav1.NewMicroTime(c.Began), EndedAt: microTime(c.Ended), Result: string(c.Result),
		Replaced: int32(c.Replaced), Message: c.Text, Decides: c.Decides, KeepsSlow: c.KeepsSlow, Named: named(c.Named), Wish: c.Wish,
		Rounds: int32(c.Rounds), Speeds: speeds(c.Speeds),
	}
}

func speeds(all []elastic.Speeds) (out []v1alpha1.ModelSpeeds) {
	for _, s := range all {
		out = append(out, v1alpha1.ModelSpeeds{
			Model: s.Model, Pods: int32(s.Pods), Alone: s.Alone, AloneMedian: s.AloneMedian, Pair: s.Pair, PairMedian: s.PairMedian,
		})
	}
	return out
}

func plainSpeeds(all []v1alpha1.ModelSpeeds) (out []elastic.Speeds) {
	for _, s := range all {
		out = append(out, elastic.Speeds{
			Model: s.Model, Pods: int(s.Pods), Alone: s.Alone, AloneMedian: s.AloneMedian, Pair: s.Pair, PairMedian: s.PairMedian,
		})
	}
	return out
}

func named(all []elastic.Named) (out []v1alpha1.NamedPod) {
	for _, n := range all {
		out = append(out, v1alpha1.NamedPod{Slot: int32(n.Slot), Pod: n.Pod, Node: n.Node, Cause: n.Cause, Message: n.Text})
	}
	return out
}

func plainNamed(all []v1alpha1.NamedPod) (out []elastic.Named) {
	for _, n := range all {
		out = append(out, elastic.Named{Slot: elastic.Slot(n.Slot), Pod: n.Pod, Node: n.Node, Cause: n.Cause, Text: n.Message})
	}
	return out
}

func plainNodeCheck(c *v1alpha1.NodeCheck) elastic.Check {
	if c == nil {
		return elastic.Check{}
	}
	return elastic.Check{
		Before: c.Generation, Began: c.StartedAt.Time, Ended: plainTime(c.EndedAt), Result: elastic.CheckResult(c.Result),
		Replaced: int(c.Replaced), Text: c.Message, Decides: c.Decides, KeepsSlow: c.KeepsSlow, Named: plainNamed(c.Named),
		Wish: c.Wish, Rounds: int(c.Rounds), Speeds: plainSpeeds(c.Speeds),
	}
}

// Nodes returns what the Nodes tell about checks, from the cache.
func (c *Controller) Nodes(ctx context.Context, names []string) (elastic.NodesKnown, error) {
	list := &corev1.NodeList{}
	if err := c.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return elastic.NodesKnown{}, fmt.Errorf("listing nodes: %w", err)
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	out, now, speeds := elastic.NodesKnown{Nodes: map[string]elastic.NodeKnown{}}, time.Now(), map[string][]check.Usual{}
	for i := range list.Items {
		node := &list.Items[i]
		k := nodecontroller.KnownOf(node, now)
		if wanted[node.Name] {
			out.Nodes[node.Name] = elastic.NodeKnown{Passed: k.Passed, Accusations: k.Accusations}
		}
		seen := map[string]bool{"": true}
		for _, p := range k.Passes { // newest first
			if !seen[p.Model] {
				seen[p.Model] = true
				speeds[p.Model] = append(speeds[p.Model], check.Usual{Alone: p.Alone, Pair: p.Pair})
			}
		}
	}
	out.Usual = check.Medians(speeds)
	return out, nil
}

// NotePasses records on Nodes that they passed the gang's check.
func (c *Controller) NotePasses(ctx context.Context, key coordinator.Key, passes []elastic.NodePass) {
	if c.Pass == nil {
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, passWriters)
	failed := atomic.Int64{}
	for _, p := range passes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := c.Pass(ctx, p.Node, v1alpha1.NodePass{
				Namespace: key.Namespace, Gang: key.Name, Devices: int32(p.Devices), Model: p.Model, Alone: p.Speed.Alone, Pair: p.Speed.Pair,
			})
			if err != nil && failed.Add(1) == 1 {
				c.Log.Error(err, "a pass of a node check is not recorded: the next gang there is checked", "gang", key, "node", p.Node)
			}
		})
	}
	wg.Wait()
	c.Log.Info("a node check passed", "gang", key, "nodes", len(passes), "unrecorded", failed.Load())
}

// Forgive withdraws the gang's word that a node is slow. If that fails, the core requests it again.
func (c *Controller) Forgive(ctx context.Context, key coordinator.Key, node string) {
	if c.Unsuspect == nil {
		return
	}
	s := v1alpha1.NodeSuspicion{Namespace: key.Namespace, Gang: key.Name, Cause: v1alpha1.CauseNodeSlow}
	if err := c.Unsuspect(ctx, node, s); err != nil {
		c.Log.Error(err, "the exclusion of a slow node is not withdrawn; retrying", "gang", key, "node", node)
	}
}
