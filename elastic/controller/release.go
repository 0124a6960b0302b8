package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// A pod is replaced in two steps, whatever the kind of its job:
//
//   - It leaves its job, as the job's kind releases it: the kind's controller counts nothing, and creates another one; where
//     that has the same name, once the old one is gone.
//   - From then on nothing but LabelReplaced ends it: whatever carries it is evicted or, where its node is dead, deleted at
//     once. So a leader that ends between the two leaves nothing behind, and a budget of the user's may refuse for as long
//     as it likes.

// Replace releases a pod from its Job. Replace may be called again, and for a pod that an earlier leader released. A failed rack releases
// hundreds of pods at once. So in the plain case it reads the pod from the cache, and the patch is conditional on the cached version. In
// any other case it queries the API server.
func (c *Controller) Replace(ctx context.Context, key coordinator.Key, d elastic.Termination) error {
	if err := c.exclude(ctx, key, d); err != nil {
		return err
	}
	pod := &corev1.Pod{}
	name := types.NamespacedName{Namespace: key.Namespace, Name: d.Name}
	if err := c.Client.Get(ctx, name, pod); err == nil && c.plain(key, d, pod) {
		if err := c.release(ctx, key, d, pod, pod.ResourceVersion); !apierrors.IsConflict(err) {
			return err
		}
	}
	pod = &corev1.Pod{}
	err := c.Live.Get(ctx, name, pod)
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(pod.UID) != d.Pod:
		return nil // it is gone, and with it what there was to do
	case err != nil:
		return fmt.Errorf("reading pod %s: %w", name, err)
	case membership.Replaced(pod):
		return nil
	}
	if !membership.MadeFor(pod, types.UID(key.Job)) {
		return nil // somebody else took it out
	}
	if pod.DeletionTimestamp != nil {
		j, err := c.live(ctx, key)
		if err != nil {
			return err
		}
		if j == nil || j.over() || j.suspended() {
			return nil // the job ends or rests, and its pods with it: none is made in this one's place
		}
	}
	return c.release(ctx, key, d, pod, "")
}

// excludeFor is how long the exclusion of a node is tried before its pod is released without one.
const excludeFor = 30 * time.Second

// exclude has the node of a pod excluded that is replaced because its node may be at fault.
func (c *Controller) exclude(ctx context.Context, key coordinator.Key, d elastic.Termination) error {
	if c.Suspect == nil || !d.Suspects() || d.Node == "" {
		return nil
	}
	err := c.Suspect(ctx, d.Node, v1alpha1.NodeSuspicion{
		Namespace: key.Namespace,
		Gang:      key.Name,
		Cause:     d.Cause,
		Message:   d.Message,
		Proven:    d.Proven(),
	})
	switch {
	case err == nil:
		return nil
	case time.Since(d.At) < excludeFor:
		return fmt.Errorf("excluding node %s of pod %s: %w", d.Node, d.Name, err)
	}
	c.Log.Error(err, "a suspected node is not excluded; its pod is replaced", "gang", key, "node", d.Node, "pod", d.Name)
	return nil
}

// plain reports whether the cached pod is the one that is meant, lives, and belongs to its Job.
func (c *Controller) plain(key coordinator.Key, d elastic.Termination, pod *corev1.Pod) bool {
	return string(pod.UID) == d.Pod && pod.DeletionTimestamp == nil && !membership.Replaced(pod) && membership.MadeFor(pod, types.UID(key.Job))
}

// release releases the pod from its job; where a version is given, that version only.
func (c *Controller) release(ctx context.Context, key coordinator.Key, d elastic.Termination, pod *corev1.Pod, version string) error {
	change, there, err := c.released(ctx, key, pod)
	if err != nil || !there {
		return err // gone, and its pods go with it
	}
	gap := slotGap{pod: d.Pod, maker: membership.OwningJob(pod)}
	if err := c.mark(ctx, pod, change, version); err != nil {
		return err
	}
	c.Log.Info("a pod was taken out of its Job", "gang", key, "slot", d.Slot, "pod", d.Name, "node", d.Node, "cause", d.Cause, "dead", d.Dead)
	c.counts.replaced(d)
	c.noteReleased(key, d.Slot, gap)
	return nil
}

// mark is the one patch by which a pod leaves its job and is to be evicted.
func (c *Controller) mark(ctx context.Context, pod *corev1.Pod, change kinds.Release, version string) error {
	name := client.ObjectKeyFromObject(pod)
	labels := map[string]any{v1alpha1.LabelReplaced: "true"}
	for _, k := range change.Remove {
		labels[k] = nil
	}
	metadata := map[string]any{"uid": pod.UID, "labels": labels}
	if len(change.Annotate) > 0 {
		metadata["annotations"] = change.Annotate
	}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encoding the release of pod %s: %w", name, err)
	}
	err = c.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking pod %s out of its Job: %w", name, err)
	}
	c.evictNow(pod)
	return nil
}

// evictNow queues the eviction at once instead of waiting for the informer cache, which lags when a rack fails and
// hundreds of Jobs recreate pods. What does not fit into the queue is found in the cache later.
func (c *Controller) evictNow(pod *corev1.Pod) {
	c.seenPods.note(pod.UID, deletionGrace)
	select {
	case c.freed <- event.GenericEvent{Object: pod}:
	default:
	}
}

// Holders reads the pods of a gang from the API server, not from the cache, once for all slots: the answer may end a pod.
func (c *Controller) Holders(ctx context.Context, key coordinator.Key, slots []elastic.Slot) ([]elastic.SlotHolder, error) {
	pods := &corev1.PodList{}
	if err := c.Live.List(ctx, pods, client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.LabelGang: key.Name}); err != nil {
		return nil, fmt.Errorf("listing the pods of gang %s/%s: %w", key.Namespace, key.Name, err)
	}
	holders := membership.Holders(types.UID(key.Job), int(slices.Max(slots))+1, pods.Items)
	out := make([]elastic.SlotHolder, len(slots))
	for i, slot := range slots {
		out[i].Slot = slot
		out[i].Succeeded = holders[slot] != nil && holders[slot].Status.Phase == corev1.PodSucceeded
		if pod := holders[slot]; pod != nil && !membership.Ended(pod) {
			out[i].Pod = elastic.Pod{UID: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time}
			out[i].Runs = pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
		}
	}
	return out, nil
}

const (
	// evictAgain is how long to wait where a budget refuses.
	evictAgain = 5 * time.Second
	// deletionGrace is how long an evicted pod may take until it is seen to terminate. An eviction cannot be withdrawn,
	// so asking sooner would only load an API server that is slow already.
	deletionGrace = time.Minute
	// terminates is how often a terminating pod is checked: its node may die meanwhile.
	terminates = 15 * time.Second
)

// reconcileReplaced makes sure that a released pod is deleted.
func (c *Controller) reconcileReplaced(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := c.Client.Get(ctx, req.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if pod.Labels[v1alpha1.LabelGang] == "" || !membership.Replaced(pod) && c.seenPods.left(pod.UID) <= 0 {
		return ctrl.Result{}, nil
	}
	outages, gone, err := c.nodes(ctx, []corev1.Pod{*pod})
	if err != nil {
		return ctrl.Result{}, err
	}
	switch node := pod.Spec.NodeName; {
	case gone[node] || outages[node].Dead:
		return ctrl.Result{}, c.remove(ctx, pod)
	case pod.DeletionTimestamp != nil:
		return ctrl.Result{RequeueAfter: terminates}, nil
	}
	if left := c.recentEvictions.left(pod.UID); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return c.evict(ctx, pod)
}

// recentEvictions holds the pods that were evicted, and until when they need not be evicted again. Release and eviction
// cause several changes of the pod, each of which would evict it again before the cache shows that it terminates.
type recentEvictions struct {
	mu    sync.Mutex
	until map[types.UID]time.Time // guarded by mu
}

func newRecentEvictions() *recentEvictions { return &recentEvictions{until: map[types.UID]time.Time{}} }

// recentEvictionsKept bounds what is remembered; beyond it, old entries are dropped.
const recentEvictionsKept = 1000

// left is how long the pod need not be told again.
func (a *recentEvictions) left(pod types.UID) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.until[pod]
	if !ok {
		return 0
	}
	return time.Until(until)
}

// note records an eviction that need not be repeated for that long.
func (a *recentEvictions) note(pod types.UID, long time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.until) >= recentEvictionsKept {
		maps.DeleteFunc(a.until, func(_ types.UID, until time.Time) bool { return time.Until(until) <= 0 })
	}
	a.until[pod] = time.Now().Add(long)
}

// remove deletes a pod that no kubelet will end.
func (c *Controller) remove(ctx context.Context, pod *corev1.Pod) error {
	if s := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && s != nil && *s == 0 {
		return nil // it goes as soon as the Job controller has let go of it
	}
	err := c.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod %s/%s of a dead node: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// evict evicts the pod. A disruption budget that refuses is named in an event, and the eviction is retried.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod) (ctrl.Result, error) {
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
	err := c.Client.SubResource("eviction").Create(ctx, pod, eviction)
	why, refused := refusal(err)
	switch {
	case err == nil:
		c.recentEvictions.note(pod.UID, deletionGrace)
		return ctrl.Result{RequeueAfter: deletionGrace}, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return ctrl.Result{}, nil // it has changed, so it is looked at again
	case refused:
		switch left, err := c.left(ctx, pod); {
		case err != nil:
			return ctrl.Result{}, err
		case left: // the budget keeps up what is not there any more
			return ctrl.Result{}, c.delete(ctx, pod)
		}
		c.recentEvictions.note(pod.UID, evictAgain)
		c.counts.refusals.Inc()
		c.emitRefused(ctx, pod, why)
		if err := c.noteRefused(ctx, pod, why); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{RequeueAfter: evictAgain}, nil
	}
	return ctrl.Result{}, fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// left reports whether the Job of a released pod is gone or over, so that no work depends on the pod. The pod may
// have no owner any more; its environment still names its Job.
func (c *Controller) left(ctx context.Context, pod *corev1.Pod) (bool, error) {
	g, uid := &v1alpha1.Gang{}, string(membership.JobUID(pod))
	err := c.Live.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang]}, g)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the gang of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case g.DeletionTimestamp != nil || uid != "" && g.Spec.JobRef.UID != uid:
		return true, nil
	}
	j, err := c.live(ctx, keyOf(g))
	return err == nil && (j == nil || j.over()), err
}

// delete ends a pod in its own time.
func (c *Controller) delete(ctx context.Context, pod *corev1.Pod) error {
	err := c.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod %s/%s, whose Job is over: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// refusal returns what a disruption budget says. An overloaded API server is not a refusal.
func refusal(err error) (string, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", false
	}
	if d := status.Status().Details; apierrors.IsTooManyRequests(err) && d != nil {
		for _, c := range d.Causes {
			if c.Type == policyv1.DisruptionBudgetCause {
				return c.Message, true
			}
		}
	}
	return "", false
}

// noteRefused records on the pod what prevents its eviction, for its Gang to repeat: events expire, and a pod may wait
// for days.
func (c *Controller) noteRefused(ctx context.Context, pod *corev1.Pod, why string) error {
	why = cause.Tail(why, noteLimit)
	if pod.Annotations[v1alpha1.AnnotationEvictionRefused] == why {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{v1alpha1.AnnotationEvictionRefused: why}}})
	if err != nil {
		return fmt.Errorf("encoding the refused eviction of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = c.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("recording the refused eviction of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// emitRefused emits an event on Job and Gang that names the budget which prevents the eviction of a replaced pod.
func (c *Controller) emitRefused(ctx context.Context, pod *corev1.Pod, why string) {
	note := fmt.Sprintf("pod %s on node %s was replaced but its eviction is refused: %s; retrying every %s", pod.Name, pod.Spec.NodeName, why, evictAgain)
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang]}, g); err != nil {
		c.Log.Info(note, "pod", client.ObjectKeyFromObject(pod))
		return
	}
	c.emit(g, pod, corev1.EventTypeWarning, v1alpha1.ReasonEvictionRefused, "Evict", note)
}
