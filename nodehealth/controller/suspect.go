package controller

import (
	"cmp"
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
	// suspectedFor is how long a gang's word excludes a node, provenFor how long if a node check found it at fault or slow.
	suspectedFor = 10 * time.Minute
	provenFor    = 24 * time.Hour
	// decisionWait is how long Suspect waits for the decision to be written, decisionPoll how often it looks.
	decisionWait = 3 * time.Second
	decisionPoll = 20 * time.Millisecond
	// maxSuspicion bounds a suspicion's message, in bytes.
	maxSuspicion = 200
)

// Suspect records a gang's suspicion on a Node, and returns once the node is excluded, or after decisionWait: the outage budget may not
// allow it. It sets the suspicion's times. A Node that is gone needs no exclusion. Suspect may be called again.
func (c *Controller) Suspect(ctx context.Context, name string, s v1alpha1.NodeSuspicion) error {
	node := &corev1.Node{}
	if err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if c.DryRun || c.Budget.MaxSuspected == (budget.Limit{}) {
		c.Log.Info("a gang suspects a node, which stays in use", "node", name, "gang", s.Namespace+"/"+s.Gang, "cause", s.Cause, "message", s.Message)
		return nil
	}
	now := c.Now()
	after, err := c.change(ctx, node, func(node *corev1.Node) (bool, error) { return putSuspicion(node, s, now) })
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	ctx, cancel := context.WithTimeout(ctx, decisionWait)
	defer cancel()
	for !hasOutage(after) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(decisionPoll):
		}
		if err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, after); err != nil {
			return nil // gone, or the wait is over
		}
	}
	return nil
}

// Forgive removes a gang's suspicion of a cause from a Node. A Node that is gone has none.
func (c *Controller) Forgive(ctx context.Context, name string, s v1alpha1.NodeSuspicion) error {
	node := &corev1.Node{}
	if err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil || c.DryRun {
		return client.IgnoreNotFound(err)
	}
	_, err := c.change(ctx, node, func(node *corev1.Node) (bool, error) { return dropSuspicion(node, s) })
	return client.IgnoreNotFound(err)
}

func dropSuspicion(node *corev1.Node, s v1alpha1.NodeSuspicion) (bool, error) {
	list, err := v1alpha1.NodeSuspicionsOf(node)
	if err != nil {
		return false, err
	}
	kept := slices.DeleteFunc(slices.Clone(list), func(old v1alpha1.NodeSuspicion) bool {
		return old.Namespace == s.Namespace && old.Gang == s.Gang && old.Cause == s.Cause
	})
	switch {
	case len(kept) == len(list):
		return false, nil
	case len(kept) == 0:
		delete(node.Annotations, v1alpha1.AnnotationSuspicions)
		return true, nil
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return false, fmt.Errorf("writing the suspicions of Node %s: %w", node.Name, err)
	}
	node.Annotations[v1alpha1.AnnotationSuspicions] = string(text)
	return true, nil
}

// putSuspicion adds a suspicion to a Node, one per gang: a repeated one renews it once less than half of its time is left. It drops those
// that count no more.
func putSuspicion(node *corev1.Node, s v1alpha1.NodeSuspicion, now time.Time) (bool, error) {
	list, err := v1alpha1.NodeSuspicionsOf(node)
	if err != nil {
		list = nil // written again
	}
	for _, old := range list {
		half := old.Until.Sub(old.At.Time) / 2
		if old.Namespace == s.Namespace && old.Gang == s.Gang && old.Cause == s.Cause && old.Until.Sub(now) > half {
			return false, nil
		}
	}
	excluded := suspectedFor
	if s.Proven || s.Cause == v1alpha1.CauseNodeSlow {
		excluded = provenFor
	}
	s.At, s.Until, s.Message = metav1.NewMicroTime(now), metav1.NewMicroTime(now.Add(excluded)), cut(s.Message, maxSuspicion)
	list = slices.DeleteFunc(list, func(old v1alpha1.NodeSuspicion) bool {
		return old.Namespace == s.Namespace && old.Gang == s.Gang && (s.Proven || !old.Proven) ||
			!now.Before(old.Until.Time) && (!old.Proven || now.Sub(old.At.Time) >= budget.SuspicionMemory)
	})
	whose := func(s v1alpha1.NodeSuspicion) (string, metav1.MicroTime) { return s.Namespace, s.At }
	list = bounded(append(list, s), v1alpha1.MaxSuspicions, whose)
	text, err := json.Marshal(list)
	if err != nil {
		return false, fmt.Errorf("writing the suspicions of Node %s: %w", node.Name, err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationSuspicions, string(text))
	return true, nil
}

// bounded drops entries over the limit: the oldest of the namespace that has most of them, so that no namespace displaces the words of
// others.
func bounded[E any](list []E, most int, of func(E) (namespace string, at metav1.MicroTime)) []E {
	at := func(e E) int64 { _, at := of(e); return at.UnixNano() }
	slices.SortStableFunc(list, func(a, b E) int { return cmp.Compare(at(a), at(b)) })
	for len(list) > most {
		count := map[string]int{}
		largest := 0
		for _, e := range list {
			namespace, _ := of(e)
			count[namespace]++
			largest = max(largest, count[namespace])
		}
		i := slices.IndexFunc(list, func(e E) bool { namespace, _ := of(e); return count[namespace] == largest })
		list = slices.Delete(list, i, i+1)
	}
	return list
}

// nodeSuspicions returns the words of gangs about a node.
func nodeSuspicions(node *corev1.Node) (out []budget.Suspicion, err error) {
	list, err := v1alpha1.NodeSuspicionsOf(node)
	for _, s := range list[:min(len(list), v1alpha1.MaxSuspicions)] {
		out = append(out, budget.Suspicion{
			Namespace: s.Namespace,
			Gang:      s.Gang,
			At:        s.At.Time,
			Until:     s.Until.Time,
			Proven:    s.Proven,
		})
	}
	return out, err
}
