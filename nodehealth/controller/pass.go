package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth/budget"
)

const (
	// passWriters bounds concurrent writes of passes: a gang may have thousands, and decisions share the rate limit.
	passWriters = 4
	// speedMemory is how long the speeds of a pass are kept.
	speedMemory = 7 * 24 * time.Hour
	// maxModel bounds a model, in bytes.
	maxModel = 64
)

// Pass records on a Node that it passed a gang's node check, and sets the time. A Node that is gone has no passes.
func (c *Controller) Pass(ctx context.Context, name string, p v1alpha1.NodePass) error {
	if c.DryRun {
		return nil
	}
	select {
	case c.passing <- struct{}{}:
		defer func() { <-c.passing }()
	case <-ctx.Done():
		return fmt.Errorf("recording a pass of Node %s: %w", name, ctx.Err())
	}
	node := &corev1.Node{}
	if err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	now := c.Now()
	_, err := c.change(ctx, node, func(node *corev1.Node) (bool, error) { return true, putPass(node, p, now) })
	return client.IgnoreNotFound(err)
}

// putPass adds a pass to a Node, one per gang, and drops old ones.
func putPass(node *corev1.Node, p v1alpha1.NodePass, now time.Time) error {
	list, err := v1alpha1.NodePassesOf(node)
	if err != nil {
		list = nil // written again
	}
	p.At, p.Model = metav1.NewMicroTime(now), cut(p.Model, maxModel)
	list = slices.DeleteFunc(list, func(old v1alpha1.NodePass) bool {
		return old.Namespace == p.Namespace && old.Gang == p.Gang || now.Sub(old.At.Time) >= speedMemory
	})
	list = bounded(append(list, p), v1alpha1.MaxPasses, func(p v1alpha1.NodePass) (string, metav1.MicroTime) { return p.Namespace, p.At })
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("writing the passes of Node %s: %w", node.Name, err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationPasses, string(text))
	return nil
}

// passesOf returns the node checks that a node passed.
func passesOf(node *corev1.Node) (out []budget.Pass, err error) {
	list, err := v1alpha1.NodePassesOf(node)
	for _, p := range list[:min(len(list), v1alpha1.MaxPasses)] {
		out = append(out, budget.Pass{Namespace: p.Namespace, Gang: p.Gang, At: p.At.Time, Devices: int(p.Devices)})
	}
	return out, err
}

// Known is what a Node tells about an earlier node check.
type Known struct {
	// Passed: a gang may start there without a check (budget.Node.Passed).
	Passed bool
	// Accusations is the number of namespaces whose node checks found it at fault.
	Accusations int
	// Passes are the newest first.
	Passes []v1alpha1.NodePass
}

// KnownOf reads what a Node tells about earlier node checks. Of an unreadable annotation nothing is known.
func KnownOf(node *corev1.Node, now time.Time) (k Known) {
	list, err := v1alpha1.NodePassesOf(node)
	if err != nil {
		return Known{}
	}
	k.Passes = slices.Clone(list[:min(len(list), v1alpha1.MaxPasses)])
	slices.SortStableFunc(k.Passes, func(a, b v1alpha1.NodePass) int { return b.At.Compare(a.At.Time) })
	n, err := budgetNode(node, nil)
	if err != nil {
		return k
	}
	n.Passes, _ = passesOf(node)
	by := map[string]bool{}
	for _, s := range n.Suspicions {
		if s.Proven && now.Sub(s.At) < budget.SuspicionMemory {
			by[s.Namespace] = true
		}
	}
	k.Passed, k.Accusations = n.Passed(now), len(by)
	return k
}
