package controller

import (
	"context"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// watchRetention registers what tells the coordinator which steps a job asks to be kept in storage.
func (c *Controller) watchRetention(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("retention").
		For(&v1alpha1.Gang{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(reconcile.Func(c.reconcileRetention))
	if err != nil {
		return fmt.Errorf("registering the controller of retention: %w", err)
	}
	return nil
}

// reconcileRetention tells what one Gang asks for. A coordinator that does not lead, or a gang that it cannot load, reads it later.
func (c *Controller) reconcileRetention(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if g.Spec.Storage == nil {
		return ctrl.Result{}, nil
	}
	if err := c.Coordinator.SetRetention(ctx, keyOf(g), retentionOf(g)); err != nil {
		return ctrl.Result{}, fmt.Errorf("sending the retention settings of gang %s to the coordinator: %w", req, err)
	}
	return ctrl.Result{}, nil
}

// retentionOf is what a Gang asks to be kept in storage.
func retentionOf(g *v1alpha1.Gang) elastic.Retention {
	r := elastic.Retention{Gang: string(g.UID), Version: g.Generation}
	if g.Spec.Storage == nil {
		return r
	}
	r.Keep, r.Every = int(g.Spec.Storage.Keep), time.Duration(g.Spec.Storage.KeepEverySeconds)*time.Second
	r.PinWish = g.Spec.Storage.PinWish
	for _, p := range g.Spec.Storage.Pins[:min(len(g.Spec.Storage.Pins), v1alpha1.MaxPins)] {
		r.Pins = append(r.Pins, protocol.Mark{Step: p.Step, Generation: p.Generation})
	}
	return r
}
