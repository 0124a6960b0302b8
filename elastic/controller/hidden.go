package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// Admission hides a pod from its job's controller before its deletion begins (webhook.Leaving). Where none follows, because a disruption
// budget refused it, say, that controller cannot create the pod that it misses, and does nothing else for the job meanwhile.

// hiddenMost is how long a pod stays hidden whose deletion has not begun. It is no multiple of the 5 s after which kubectl drain tries
// again, so that the label does not come back as the next eviction is judged.
const hiddenMost = 12 * time.Second

// showHidden gives such pods back to the controller; again, where set, is when to look again.
func (c *Controller) showHidden(
	ctx context.Context,
	key coordinator.Key,
	pods []corev1.Pod,
	now time.Time,
) (again time.Duration, err error) {
	kind, err := c.kindOf(ctx, key)
	if _, hides := kind.(kinds.PyTorchJob); err != nil || !hides {
		return 0, err
	}
	for i := range pods {
		left, hidden := c.hiddenFor(key, &pods[i], now)
		switch {
		case !hidden:
		case left > 0:
			again = sooner(again, left)
		default:
			if err := c.show(ctx, &pods[i], key.Name); err != nil {
				return 0, err
			}
		}
	}
	return again, nil
}

// hiddenFor returns for how long a pod may stay hidden; false: it is not, or its deletion has begun.
func (c *Controller) hiddenFor(key coordinator.Key, pod *corev1.Pod, now time.Time) (left time.Duration, hidden bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.hidden, func(_ types.UID, at time.Time) bool { return now.Sub(at) > terminatingKept })
	leaves := pod.DeletionTimestamp != nil || membership.Replaced(pod) || !membership.MadeFor(pod, types.UID(key.Job))
	if pod.Labels[kinds.FoundBy] != "" || leaves {
		delete(c.hidden, pod.UID)
		return 0, false
	}
	if membership.Ended(pod) { // its controller must count it
		return 0, true
	}
	at, known := c.hidden[pod.UID]
	if !known {
		at = now
		c.hidden[pod.UID] = at
	}
	return at.Add(hiddenMost).Sub(now), true
}

func (c *Controller) show(ctx context.Context, pod *corev1.Pod, job string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             pod.UID,
		"resourceVersion": pod.ResourceVersion,
		"labels":          map[string]any{kinds.FoundBy: job},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = c.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("giving pod %s/%s back to its job's controller: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
