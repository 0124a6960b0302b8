package controller

import (
	"context"
	"fmt"
	"maps"
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
	at := slotKey{key, elastic.Slot(slot)}
	if !c.mayEnd(at, pod.UID, time.Now()) {
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
	c.noteEnded(at, pod.UID, time.Now())
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

// mayEnd reports whether a pod of a slot that its node ends may be released: few others of the slot were.
func (c *Controller) mayEnd(at slotKey, pod types.UID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := 0
	for uid, when := range c.ended[at] {
		if uid != pod && now.Sub(when) < endedWindow {
			others++
		}
	}
	return others < mostEnded
}

// noteEnded records that a pod was released that its node ended. Once per window it forgets those that no longer count.
func (c *Controller) noteEnded(at slotKey, pod types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.endedSwept) >= endedWindow {
		c.endedSwept = now
		for slot, pods := range c.ended {
			maps.DeleteFunc(pods, func(_ types.UID, when time.Time) bool { return now.Sub(when) >= endedWindow })
			if len(pods) == 0 {
				delete(c.ended, slot)
			}
		}
	}
	if c.ended[at] == nil {
		c.ended[at] = map[types.UID]time.Time{}
	}
	if _, known := c.ended[at][pod]; !known {
		c.ended[at][pod] = now
	}
}
