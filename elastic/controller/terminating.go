package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/membership"
)

// A kubelet that shuts its node down, or evicts a pod, sends SIGTERM and deletes nothing, and the pod's status says why only once
// its containers have ended: then the Job controller has counted a failure. So the agent's word that it was told to end is
// taken for a question: is the node shutting down, or short of something? Both stand in the node's conditions, within moments of
// the signal. A pod for whose end the node has no reason is left alone: its launcher may have been told to end by the user's script.
const (
	// explainAgain is how often it is looked for, explainMost how long.
	explainAgain = 500 * time.Millisecond
	explainMost  = 30 * time.Second
	// terminatingKept is how long such a pod is remembered at most.
	terminatingKept = 2 * time.Hour
)

// NoteTerminating records that the agent of a pod reported that it is terminating, and has its gang reconciled; false:
// the caller must repeat it.
func (c *Controller) NoteTerminating(key coordinator.Key, pod elastic.Pod) bool {
	c.mu.Lock()
	maps.DeleteFunc(c.terminating, func(_ types.UID, at time.Time) bool { return time.Since(at) > terminatingKept })
	if _, known := c.terminating[types.UID(pod.UID)]; !known {
		c.terminating[types.UID(pod.UID)] = time.Now()
	}
	c.mu.Unlock()
	g := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	select {
	case c.noticed <- event.GenericEvent{Object: g}:
		return true
	default:
		return false
	}
}

// ForgetTerminating drops what NoteTerminating recorded: the container was started again in its pod, so its node does
// not end it.
func (c *Controller) ForgetTerminating(pod elastic.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.terminating, types.UID(pod.UID))
}

// terminatingAt returns when a pod that nobody deletes reported that it is terminating.
func (c *Controller) terminatingAt(pod *corev1.Pod) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.terminating[pod.UID]
	return at, ok && pod.DeletionTimestamp == nil && !membership.Ended(pod) && pod.Spec.NodeName != ""
}

// ends are the pods that their nodes end.
func (c *Controller) ends(ctx context.Context, pods []corev1.Pod) (map[types.UID]Ending, error) {
	var out map[types.UID]Ending
	for i := range pods {
		at, leaves := c.terminatingAt(&pods[i])
		if !leaves {
			continue
		}
		node := &corev1.Node{}
		if err := c.Client.Get(ctx, types.NamespacedName{Name: pods[i].Spec.NodeName}, node); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading node %s: %w", pods[i].Spec.NodeName, err)
		}
		if cause, message := nodeEnds(node); cause != "" {
			if out == nil {
				out = map[types.UID]Ending{}
			}
			out[pods[i].UID] = Ending{Cause: cause, Message: message, At: at}
		}
	}
	return out, nil
}

// unexplained returns when to check again why pods terminate for which no replacement is pending; 0 where there are
// none.
func (c *Controller) unexplained(pods []corev1.Pod, terminations []elastic.Termination) time.Duration {
	for i := range pods {
		at, leaves := c.terminatingAt(&pods[i])
		listed := slices.ContainsFunc(terminations, func(d elastic.Termination) bool { return d.Pod == string(pods[i].UID) })
		if leaves && !listed && !membership.Replaced(&pods[i]) && time.Since(at) < explainMost {
			return explainAgain
		}
	}
	return 0
}
