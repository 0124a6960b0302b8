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
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/internal/protocol"
)

// watchSettings registers what passes the settings of a job that may change to the coordinator.
func (c *Controller) watchSettings(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("gang-settings").
		For(&v1alpha1.Gang{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(reconcile.Func(c.reconcileSettings))
	if err != nil {
		return fmt.Errorf("registering the controller of the settings of gangs: %w", err)
	}
	return nil
}

// reconcileSettings passes the settings of one Gang to the coordinator. A coordinator that does not lead, or a gang that it cannot load,
// reads them later.
func (c *Controller) reconcileSettings(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := c.Coordinator.SetSettings(ctx, keyOf(g), settingsOf(g)); err != nil {
		return ctrl.Result{}, fmt.Errorf("sending the settings of gang %s to the coordinator: %w", req, err)
	}
	return ctrl.Result{}, nil
}

// growOf are the values of GangSpec.Grow; absent: quorum.GrowAuto.
var growOf = map[string]quorum.Grow{v1alpha1.GrowWithRestart: quorum.GrowWithRestart, v1alpha1.GrowOff: quorum.GrowOff}

// settingsOf returns the settings of a Gang.
func settingsOf(g *v1alpha1.Gang) elastic.Settings {
	s := elastic.Settings{
		Storage:     elastic.Storage{Retention: retentionOf(g)},
		Supervision: supervisionOf(g),
		Limits: quorum.Limits{
			Min:         int(g.Spec.MinPods),
			Unit:        int(g.Spec.PodsUnit),
			ShrinkAfter: time.Duration(g.Spec.ShrinkAfterSeconds) * time.Second,
			Grow:        growOf[g.Spec.Grow],
			Retry:       g.Spec.RetrySizes,
		},
	}
	if st := g.Spec.Storage; st != nil {
		s.Every = time.Duration(st.IntervalSeconds) * time.Second
	}
	return s
}

// supervisionOf returns what a Gang requests for ranks that stand still.
func supervisionOf(g *v1alpha1.Gang) elastic.Supervision {
	s := elastic.Supervision{Timeout: time.Duration(g.Spec.HangTimeoutSeconds) * time.Second}
	switch g.Spec.Hang {
	case v1alpha1.HangAct:
		s.Hang = elastic.HangAct
	case v1alpha1.HangReport:
		s.Hang = elastic.HangReport
	}
	switch g.Spec.NodeCheck {
	case v1alpha1.NodeCheckAlways:
		s.NodeCheck = elastic.CheckFirst
	case v1alpha1.NodeCheckAuto:
		s.NodeCheck = elastic.CheckUnlessPassed
	case v1alpha1.NodeCheckSuspects:
		s.NodeCheck = elastic.CheckSuspects
	}
	s.CheckWish, s.CheckNow = g.Spec.CheckWish, g.Spec.CheckNow
	s.ReplaceSlow = g.Spec.SlowNodes == v1alpha1.SlowExclude
	return s
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
