package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// slotKey is a slot of one gang.
type slotKey struct {
	gang coordinator.Key
	slot elastic.Slot
}

// slotGap is a slot whose pod was taken out.
type slotGap struct {
	pod   string
	since time.Time
	// maker is the batch Job that creates the next pod; nil: another kind of controller does.
	maker *metav1.OwnerReference
	// freed is when that pod was first seen to use nothing any more, asked how often the Job controller was asked for another one since,
	// askedAt when it was last.
	freed   time.Time
	asked   int
	askedAt time.Time
}

// The Job controller makes the next pod as soon as one is taken out of the Job, while that one counts yet. Where a quota of the namespace
// has no room for both it is refused, and tries again after 1 s, 2 s, 4 s, up to a minute: the end of a pod that no Job owns has no Job
// looked at. A change of the Job does, a second later and whatever the pause is (1.37: pkg/controller/job/job_controller.go).
const (
	// usualGap is how long a slot may stay empty where nothing is in the way.
	usualGap = 2 * time.Second
	// refillPause is the pause before a Job is changed for the second time, which doubles: a quota is counted a moment after a pod has gone.
	refillPause = 2 * time.Second
	// mostRefills bounds how often it is: then others have taken the room.
	mostRefills = 5
)

// refill is when the Job controller is to be asked for a pod of the slot; false: not any more.
func (g slotGap) refill() (time.Time, bool) {
	when := g.since.Add(usualGap)
	if g.freed.After(when) {
		when = g.freed
	}
	if g.asked > 0 {
		when = g.askedAt.Add(refillPause << (g.asked - 1))
	}
	return when, g.asked < mostRefills
}

// noteReleased records when a slot lost its pod; noteFilled measures how long the slot stayed empty.
func (c *Controller) noteReleased(key coordinator.Key, slot elastic.Slot, gap slotGap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gap.since = time.Now()
	c.slotGaps[slotKey{key, slot}] = gap
}

// noteFilled looks for new pods in empty slots. Gaps of gangs that have ended are dropped.
func (c *Controller) noteFilled(key coordinator.Key, pods []corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, v := range c.slotGaps {
		if time.Since(v.since) > slotGapKept {
			delete(c.slotGaps, at)
		}
	}
	if len(c.slotGaps) == 0 {
		return
	}
	for i := range pods {
		slot, ok := membership.GangSlot(&pods[i])
		at := slotKey{key, elastic.Slot(slot)}
		v, free := c.slotGaps[at]
		if ok && free && string(pods[i].UID) != v.pod && !membership.Replaced(&pods[i]) && pods[i].DeletionTimestamp == nil {
			c.counts.recreated.Observe(time.Since(v.since).Seconds())
			delete(c.slotGaps, at)
		}
	}
}

// slotGapKept bounds how long a slot gap is remembered.
const slotGapKept = 10 * time.Minute

// refill has the Job controller look at a Job of which a slot stays empty though the pod that was in it has ended; again, where set, is
// when to look again.
func (c *Controller) refill(ctx context.Context, key coordinator.Key, pods []corev1.Pod, now time.Time) (again time.Duration, err error) {
	uses := map[string]bool{}
	for i := range pods {
		uses[string(pods[i].UID)] = !membership.Ended(&pods[i])
	}
	due, again := c.refillsDue(key, uses, now)
	if len(due) == 0 {
		return again, nil
	}
	j, err := c.live(ctx, key)
	if err != nil || j == nil || j.over() || j.suspended() {
		return 0, err
	}
	notes := map[string]string{v1alpha1.AnnotationMadeRoom: now.UTC().Format(time.RFC3339)}
	patch := map[string]any{"metadata": map[string]any{"annotations": notes}}
	for uid, name := range due {
		maker := &unstructured.Unstructured{}
		maker.SetNamespace(key.Namespace)
		maker.SetName(name)
		maker.SetUID(uid)
		if err := c.write(ctx, &job{kind: kinds.BatchJob{}, obj: maker}, kinds.Write{Type: types.MergePatchType, Patch: patch}); err != nil {
			return 0, fmt.Errorf("querying a pod again: %w", err)
		}
	}
	return again, nil
}

// refillsDue returns the Jobs, with their names, for whose gaps the time has come; uses are the pods that there are, and whether each
// uses anything yet.
func (c *Controller) refillsDue(
	key coordinator.Key,
	uses map[string]bool,
	now time.Time,
) (due map[types.UID]string, again time.Duration) {
	due = map[types.UID]string{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, gap := range c.slotGaps {
		if at.gang != key || uses[gap.pod] || gap.maker == nil {
			continue
		}
		if gap.freed.IsZero() {
			gap.freed = now
		}
		if when, more := gap.refill(); more && !when.After(now) {
			due[gap.maker.UID] = gap.maker.Name
			gap.asked, gap.askedAt = gap.asked+1, now
		}
		if when, more := gap.refill(); more {
			again = sooner(again, when.Sub(now))
		}
		c.slotGaps[at] = gap
	}
	return due, again
}
