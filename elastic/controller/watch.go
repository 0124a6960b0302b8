package controller

import (
	"context"
	"fmt"
	"maps"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/membership"
)

// Coordinator receives which pods of a gang must be replaced and where they are, that its Job is over, and its settings.
type Coordinator interface {
	SetPendingReplacements(ctx context.Context, key coordinator.Key, pods []elastic.Termination) error
	Suspended(ctx context.Context, key coordinator.Key, pods []elastic.Termination) error
	SetPlaced(ctx context.Context, key coordinator.Key, pods []elastic.Placement) error
	Over(key coordinator.Key)
	SetSettings(ctx context.Context, key coordinator.Key, s elastic.Settings) error
}

var _ Coordinator = (*coordinator.Server)(nil)

const (
	// podNode is the index of pods by node.
	podNode = "spec.nodeName"
	// PodsByGang is the index of pods by gang in the manager's cache: a label selector would compare all pods of the namespace.
	PodsByGang = v1alpha1.LabelGang
	// notifyAgain is how often an unchanged level is repeated: the coordinator forgets a gang without agents.
	notifyAgain = 30 * time.Second
	// notifiers is how many gangs are handled at a time: a rack is many gangs, each of which waits for the API server
	// and for a coordinator that may have to read its record first.
	notifiers = 16
	// evictors is how many replaced pods are evicted at a time: a rack has hundreds.
	evictors = 32
	// gangComes is how long to wait for a Gang that is about to be made.
	gangComes = time.Second
	// overAgain is how often it is repeated that a Job is over while it still has pods: an agent may reconnect
	// meanwhile.
	overAgain = time.Second
)

// sendsPending configures the controller that sends terminations; the queue gives one gang to one worker at a time.
var sendsPending = controller.Options{MaxConcurrentReconciles: notifiers}

// watch registers what follows pods and nodes.
func (c *Controller) watch(mgr ctrl.Manager) error {
	if err := IndexPods(mgr); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("pending-replacements").
		Watches(&corev1.Pod{}, c.pendingPace.Events(gangOfPod), builder.WithPredicates(podTurned)).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(gangOfJob), builder.WithPredicates(jobTurned)).
		WatchesRawSource(c.Jobs.Source()).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.podsOn(gangOfPod)), builder.WithPredicates(outageChanged)).
		WatchesRawSource(source.Channel(c.noticed, &handler.EnqueueRequestForObject{})).
		WithOptions(sendsPending).
		Complete(reconcile.Func(c.reconcilePending))
	if err != nil {
		return fmt.Errorf("registering the controller of pending replacements: %w", err)
	}
	if err := c.watchSettings(mgr); err != nil {
		return err
	}
	if err := c.watchPlaced(mgr); err != nil {
		return err
	}
	replaced := predicate.NewPredicateFuncs(func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && membership.Replaced(pod)
	})
	err = ctrl.NewControllerManagedBy(mgr).Named("replaced").
		For(&corev1.Pod{}, builder.WithPredicates(replaced)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.podsOn(replacedPod)), builder.WithPredicates(outageChanged)).
		WatchesRawSource(source.Channel(c.freed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: evictors}).
		Complete(reconcile.Func(c.reconcileReplaced))
	if err != nil {
		return fmt.Errorf("registering the controller of replaced pods: %w", err)
	}
	return nil
}

// IndexPods adds that index to the manager's cache, as SetupWithManager does.
func IndexPods(mgr ctrl.Manager) error {
	for key, of := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, key, of); err != nil {
			return fmt.Errorf("indexing pods by %s: %w", key, err)
		}
	}
	return nil
}

// indexes are those of pods.
var indexes = map[string]client.IndexerFunc{podNode: nodeOf, PodsByGang: gangNamed}

func gangNamed(o client.Object) []string {
	if name := o.GetLabels()[v1alpha1.LabelGang]; name != "" {
		return []string{name}
	}
	return nil
}

func nodeOf(o client.Object) []string {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// outageChanged passes changes that may have pods replaced or spared, but not a Node's heartbeats.
var outageChanged = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return e.Object.GetAnnotations()[v1alpha1.AnnotationOutage] != "" },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetAnnotations()[v1alpha1.AnnotationOutage] != e.ObjectNew.GetAnnotations()[v1alpha1.AnnotationOutage]
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// podTurned passes changes that may have a pod replaced or give its slot to another one, but not readiness and
// conditions.
var podTurned = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Pod)
		after, ok2 := e.ObjectNew.(*corev1.Pod)
		return !ok || !ok2 || before.UID != after.UID || before.Spec.NodeName != after.Spec.NodeName ||
			before.Status.Phase != after.Status.Phase ||
			!before.DeletionTimestamp.Equal(after.DeletionTimestamp) || !maps.Equal(before.Labels, after.Labels) ||
			membership.Orphaned(before) != membership.Orphaned(after)
	},
}

func gangOfPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Labels[v1alpha1.LabelGang] == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang]}}}
}

func replacedPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || !membership.Replaced(pod) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(pod)}}
}

// podsOn maps a Node to what its pods map to; each must not change them.
func (c *Controller) podsOn(each handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, node client.Object) []reconcile.Request {
		pods := &corev1.PodList{}
		if err := c.Client.List(ctx, pods, client.MatchingFields{podNode: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
			c.Log.Error(err, "listing the pods of a node", "node", node.GetName())
			return nil
		}
		var out []reconcile.Request
		for i := range pods.Items {
			out = append(out, each(ctx, &pods.Items[i])...)
		}
		return out
	}
}

// reconcilePending tells the coordinator which pods of one gang must be replaced, or that its Job is over. It is silent
// about gangs of which neither holds, so that the coordinator need not know them all. Each word of a pod's brings it here, so
// the gang's pods are the cache's own, which nobody may change.
func (c *Controller) reconcilePending(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pods := &corev1.PodList{}
	if err := c.Client.List(
		ctx,
		pods,
		client.InNamespace(req.Namespace),
		client.MatchingFields{PodsByGang: req.Name},
		client.UnsafeDisableDeepCopy,
	); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing the pods of gang %s: %w", req, err)
	}
	c.pendingPace.Counted(req, len(pods.Items))
	closed, err := c.reportOver(ctx, req.NamespacedName, pods.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		if apierrors.IsNotFound(err) && len(pods.Items) > 0 {
			return ctrl.Result{RequeueAfter: min(gangComes, overAgain)}, nil
		}
		if apierrors.IsNotFound(err) {
			c.forget(coordinator.Key{Namespace: req.Namespace, Name: req.Name})
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	key := keyOf(g)
	c.forget(key)
	c.noteFilled(key, pods.Items)
	if closed[key] {
		c.stands(key, false)
		_, err := c.showHidden(ctx, key, pods.Items, time.Now()) // its controller may yet delete them, as cleanPodPolicy says
		return ctrl.Result{RequeueAfter: overAgain}, err
	}
	again, err := c.tellPending(ctx, key, g, pods.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	refill, err := c.refill(ctx, key, pods.Items, time.Now())
	if err != nil {
		return ctrl.Result{}, err
	}
	show, err := c.showHidden(ctx, key, pods.Items, time.Now())
	return ctrl.Result{RequeueAfter: sooner(sooner(again, refill), show)}, err
}

// tellPending tells the coordinator which pods of one gang must be replaced; again, where set, is when to repeat it.
func (c *Controller) tellPending(
	ctx context.Context,
	key coordinator.Key,
	g *v1alpha1.Gang,
	pods []corev1.Pod,
) (again time.Duration, err error) {
	terminations, suspends, err := c.terminations(ctx, g, pods)
	if err != nil {
		return 0, err
	}
	again = c.unexplained(pods, terminations)
	if len(terminations) == 0 && !c.standing(key) && (g.Status.Run == nil || len(g.Status.Run.PendingReplacements) == 0) {
		return again, nil
	}
	send := c.Coordinator.SetPendingReplacements
	if suspends {
		send = c.Coordinator.Suspended
	}
	if err := send(ctx, key, terminations); err != nil {
		return 0, fmt.Errorf("sending %d pending replacements of gang %s/%s to the coordinator: %w", len(terminations), g.Namespace, g.Name, err)
	}
	c.stands(key, len(terminations) > 0)
	if len(terminations) > 0 && again == 0 {
		again = notifyAgain
	}
	return again, nil
}

// sooner is the shorter of two times to wait, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// terminations gathers the view of one gang. Nothing is replaced where its Job creates no more pods: whoever deletes,
// suspends or ends a Job has its pods deleted, too. The state of a suspended Job's pods is stored first.
func (c *Controller) terminations(
	ctx context.Context,
	g *v1alpha1.Gang,
	pods []corev1.Pod,
) (terminations []elastic.Termination, suspends bool, err error) {
	if g.DeletionTimestamp != nil || g.Status.Run != nil && g.Status.Run.Verdict != nil {
		return nil, false, nil
	}
	outages, gone, err := c.nodes(ctx, pods)
	if err != nil {
		return nil, false, err
	}
	ends, err := c.ends(ctx, pods)
	if err != nil {
		return nil, false, err
	}
	view := View{Job: types.UID(g.Spec.JobRef.UID), Members: int(g.Spec.Members), Pods: pods, Outages: outages, Gone: gone, Ends: ends}
	terminations = PendingReplacements(view)
	if len(terminations) == 0 {
		return nil, false, nil
	}
	j, err := c.live(ctx, keyOf(g)) // as it is now: its pods' end may be seen before its own
	if err != nil {
		return nil, false, err
	}
	switch {
	case j == nil || j.over():
		return nil, false, nil
	case j.suspended():
		return Suspended(view), true, nil
	}
	return terminations, false, nil
}

// nodes are the decisions on the nodes that pods are on, and those of the nodes that exist no more.
func (c *Controller) nodes(ctx context.Context, pods []corev1.Pod) (map[string]v1alpha1.NodeOutage, map[string]bool, error) {
	outages, gone, seen := map[string]v1alpha1.NodeOutage{}, map[string]bool{}, map[string]bool{}
	for i := range pods {
		name := pods[i].Spec.NodeName
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		node := &corev1.Node{} // the cache's own
		err := c.Client.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) { // the cache may be behind
			err = c.Live.Get(ctx, types.NamespacedName{Name: name}, node)
		}
		switch {
		case apierrors.IsNotFound(err):
			gone[name] = true
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("reading node %s: %w", name, err)
		}
		outage, err := v1alpha1.NodeOutageOf(node)
		if err != nil {
			c.Log.Error(err, "a node's outage decision cannot be decoded and is ignored", "node", name)
		}
		if outage != nil {
			outages[name] = *outage
		}
	}
	return outages, gone, nil
}

// standing reports whether terminations were sent for a gang and not withdrawn since.
func (c *Controller) standing(key coordinator.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notified[key]
}

func (c *Controller) stands(key coordinator.Key, some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if some {
		c.notified[key] = true
	} else {
		delete(c.notified, key)
	}
}

// forget drops what is kept of gangs of that name that were made for another Job: it is gone.
func (c *Controller) forget(key coordinator.Key) {
	gone := func(k coordinator.Key) bool {
		return k.Namespace == key.Namespace && k.Name == key.Name && k.Job != key.Job
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.notified, func(k coordinator.Key, _ bool) bool { return gone(k) })
	maps.DeleteFunc(c.slotGaps, func(s slotKey, _ slotGap) bool { return gone(s.gang) })
	c.writer.forget(gone)
}
