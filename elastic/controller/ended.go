package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/membership"
)

// The pods of a slot that their nodes end are released at most mostEnded times within endedWindow, on each replica. If nodes end more pods,
// the cause is not one node, and the job's own policy applies: the scheduler excludes a single node that does not admit pods.
const (
	mostEnded   = 10
	endedWindow = 10 * time.Minute
)

// ReleaseEnded releases a pod from its job whose node is about to report it as failed (webhook.Ended). A deletion that has begun is
// handled elsewhere. Every replica may call it.
func (c *Controller) ReleaseEnded(ctx context.Context, failed *corev1.Pod) error {
	pod, reason, message := failed.DeepCopy(), failed.Status.Reason, failed.Status.Message
	key := coordinator.Key{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang], Job: string(membership.JobUID(pod))}
	slot, ok := membership.GangSlot(pod)
	if !ok || pod.DeletionTimestamp != nil || !membership.MadeFor(pod, types.UID(key.Job)) {
		return nil
	}
	if !c.noteEnded(key, elastic.Slot(slot), time.Now()) {
		c.Log.Info("a pod that its node ended is left to its job: too many of its slot were", "gang", key, "pod", pod.Name, "reason", reason)
		return nil
	}
	change, there, err := c.released(ctx, key, pod)
	if err != nil || !there {
		return err
	}
	change.Annotate = maps.Clone(change.Annotate)
	if change.Annotate == nil {
		change.Annotate = map[string]string{}
	}
	change.Annotate[v1alpha1.AnnotationEndedByNode] = reason
	if err := c.mark(ctx, pod, change, ""); err != nil {
		return err
	}
	note := fmt.Sprintf("node %s ended pod %s of slot %d (%s: %s); another pod takes its place", pod.Spec.NodeName, pod.Name, slot, reason, message)
	c.Log.Info(note, "gang", key)
	g, err := c.gang(ctx, c.Client, key)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil {
		c.emit(g, pod, corev1.EventTypeWarning, v1alpha1.ReasonEndedByNode, "Replace", note)
	}
	return nil
}

// noteEnded counts a pod of a slot that its node ends, and reports whether it may be released.
func (c *Controller) noteEnded(key coordinator.Key, slot elastic.Slot, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, times := range c.ended {
		if now.Sub(times[len(times)-1]) >= endedWindow {
			delete(c.ended, at)
		}
	}
	at := slotKey{key, slot}
	recent := slices.DeleteFunc(c.ended[at], func(t time.Time) bool { return now.Sub(t) >= endedWindow })
	if len(recent) >= mostEnded {
		c.ended[at] = recent
		return false
	}
	c.ended[at] = append(recent, now)
	return true
}
