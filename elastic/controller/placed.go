package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// watchPlaced registers what follows the pods of gangs with a minimum.
func (c *Controller) watchPlaced(mgr ctrl.Manager) error {
	elastic := predicate.NewPredicateFuncs(func(o client.Object) bool {
		g, ok := o.(*v1alpha1.Gang)
		return ok && g.Spec.MinPods > 0
	})
	err := ctrl.NewControllerManagedBy(mgr).Named("placed").
		For(&v1alpha1.Gang{}, builder.WithPredicates(elastic)).
		Watches(&corev1.Pod{}, c.placedPace.Events(gangOfPod), builder.WithPredicates(podPlaced)).
		WithOptions(sendsPending).
		Complete(reconcile.Func(c.reconcilePlaced))
	if err != nil {
		return fmt.Errorf("registering the controller of the places of pods: %w", err)
	}
	return nil
}

// podPlaced passes changes of where a pod is, and why it is nowhere.
var podPlaced = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Pod)
		after, ok2 := e.ObjectNew.(*corev1.Pod)
		return !ok || !ok2 || podTurned.Update(e) || refusalOf(before) != refusalOf(after)
	},
}

// noNode are the reasons of condition PodScheduled with which a scheduler refuses a pod for lack of a node: kube-scheduler's and, where a
// new node would not help, those of Holdfast's. A pod whose gang lacks members, or for which room is made, has another one.
var noNode = []string{corev1.PodReasonUnschedulable, gang.InsufficientNodes, gang.InvalidTopology, gang.Unsupported}

// refusalOf returns why the scheduler finds no node for a pod; "": it has one, or the scheduler has not said so, or makes room for it.
func refusalOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && slices.Contains(noNode, c.Reason) {
			return c.Message
		}
	}
	return ""
}

// maxRefusal bounds a scheduler's text.
const maxRefusal = 300

// Placements returns where the pods of a gang are.
func Placements(v View) []elastic.Placement {
	var out []elastic.Placement
	for slot, pod := range membership.Holders(v.Job, v.Members, v.Pods) {
		if pod == nil || membership.Ended(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		out = append(out, elastic.Placement{
			Slot: elastic.Slot(slot), Pod: string(pod.UID), Node: pod.Spec.NodeName, Refusal: cause.Tail(refusalOf(pod), maxRefusal),
		})
	}
	return out
}

// reconcilePlaced sends the coordinator where the pods of a gang with a minimum are, and completes its job once it has finished with fewer.
func (c *Controller) reconcilePlaced(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		if apierrors.IsNotFound(err) {
			c.placedPace.Counted(req, 0)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if g.Spec.MinPods <= 0 || g.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	pods := &corev1.PodList{} // the cache's own, which are only read: each change of a pod has all of its gang's listed
	of := []client.ListOption{client.InNamespace(g.Namespace), client.MatchingFields{PodsByGang: g.Name}, client.UnsafeDisableDeepCopy}
	if err := c.Client.List(ctx, pods, of...); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing the pods of gang %s: %w", req, err)
	}
	c.placedPace.Counted(req, len(pods.Items))
	v := View{Job: types.UID(g.Spec.JobRef.UID), Members: int(g.Spec.Members), Pods: pods.Items}
	if r := g.Status.Run; r != nil && r.Verdict != nil {
		return ctrl.Result{}, c.complete(ctx, g, v)
	}
	if len(pods.Items) == 0 {
		return ctrl.Result{}, nil
	}
	if err := c.Coordinator.SetPlaced(ctx, keyOf(g), Placements(v)); err != nil {
		return ctrl.Result{}, fmt.Errorf("sending where the pods of gang %s are to the coordinator: %w", req, err)
	}
	return ctrl.Result{RequeueAfter: notifyAgain}, nil
}

// complete makes a job complete whose gang has finished with fewer pods, once none of its pods runs any more.
func (c *Controller) complete(ctx context.Context, g *v1alpha1.Gang, v View) error {
	if givenUp(g) || !Completes(v, g.Status.Run.Out) {
		return nil
	}
	j, err := c.live(ctx, keyOf(g))
	if err != nil || j == nil || j.over() {
		return err
	}
	kind, ok := j.kind.(kinds.BatchJob)
	if !ok {
		return nil
	}
	n := v.Members - len(g.Status.Run.Out)
	message := fmt.Sprintf("all ranks ended with exit code 0, in %d of %d pods; the others took no part", n, v.Members)
	return c.write(ctx, j, kind.Complete(v1alpha1.ReasonRunsWithFewer, message, time.Now()))
}

// Completes reports whether the Job of a gang that has finished without some slots would wait for pods that no longer have anything to do:
// all pods of the other slots have succeeded, and in those slots no pod has a node that has not ended.
func Completes(v View, out []int32) bool {
	missing := false
	for slot, pod := range membership.Holders(v.Job, v.Members, v.Pods) {
		succeeded := pod != nil && pod.Status.Phase == corev1.PodSucceeded
		switch {
		case succeeded:
		case !slices.Contains(out, int32(slot)), pod != nil && pod.Spec.NodeName != "" && !membership.Ended(pod):
			return false
		default:
			missing = true
		}
	}
	return missing
}
