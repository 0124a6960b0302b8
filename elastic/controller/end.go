package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/protocol"
)

// grace is how long the pods of a given-up job have to end by themselves, so that they remain as failed pods with their
// logs and exit codes, before the Job controller deletes what is left.
const grace = 5 * time.Second

// End makes the gang's job fail.
func (c *Controller) End(ctx context.Context, key coordinator.Key, v elastic.Verdict) error {
	g, err := c.gang(ctx, c.Client, key)
	if apierrors.IsNotFound(err) {
		return nil // the job is gone, and its pods go with it
	}
	if err != nil {
		return err
	}
	j, err := c.live(ctx, key)
	if err != nil || j == nil {
		return err
	}
	// A job that is over already, because its pod was faster, still owes people the reason.
	c.emit(g, g, corev1.EventTypeWarning, string(v.Reason), "GiveUp", verdictNote(v))
	if j.over() {
		return nil
	}
	return c.stop(ctx, j, v)
}

// stop makes the job fail in the way that leaves its pods some seconds to end by themselves, where its kind has one.
func (c *Controller) stop(ctx context.Context, j *job, v elastic.Verdict) error {
	w := j.kind.Fail(j.obj, failure(v, false))
	err := c.write(ctx, j, w)
	if err == nil || w.Status {
		return err
	}
	c.Log.Info("the job's limit of failures could not be lowered; its pods are deleted instead", "job", client.ObjectKeyFromObject(j.obj), "because", err.Error())
	return c.fail(ctx, j, v)
}

// fail makes the job fail at once.
func (c *Controller) fail(ctx context.Context, j *job, v elastic.Verdict) error {
	return c.write(ctx, j, j.kind.Fail(j.obj, failure(v, true)))
}

func failure(v elastic.Verdict, now bool) kinds.Failure {
	return kinds.Failure{Reason: string(v.Reason), Message: cause.Tail(summary(v), 500), At: time.Now(), Now: now}
}

// summary is the verdict in one line.
func summary(v elastic.Verdict) string {
	if v.Cause == nil {
		return fmt.Sprintf("ended with exit code %d", v.ExitCode)
	}
	line := fmt.Sprintf("rank %d in slot %d failed first, with exit code %d (%s)", v.Cause.Rank, v.Cause.Slot, v.Cause.ExitCode, v.Cause.Code)
	switch v.Reason {
	case elastic.ReasonSameFailureTwice:
		line += ", twice with the same error and no progress in between"
	case elastic.ReasonNoProgress:
		line += fmt.Sprintf(", after %d restarts without progress", protocol.RestartsWithoutProgress)
	case elastic.ReasonMaxRestarts:
		line += ", after all restarts that max-restarts allows"
	case elastic.ReasonMemberEnded:
		line += ", after other pods had ended with exit code 0"
	case elastic.ReasonRefused:
		line = fmt.Sprintf("the agent refused the launcher in slot %d", v.Cause.Slot)
	case elastic.ReasonFinished:
	}
	if v.Cause.Cascade > 0 {
		line += fmt.Sprintf("; %d further ranks ended because of it", v.Cause.Cascade)
	}
	return line
}

// verdictNote is the verdict with its evidence, short enough for an event.
func verdictNote(v elastic.Verdict) string {
	line := summary(v)
	if v.Cause == nil || v.Cause.Message == "" {
		return line
	}
	return line + "\n" + cause.Tail(v.Cause.Message, noteLimit-len(line)-1)
}

// SetupWithManager registers the reconcilers; they run only on the leader.
func (c *Controller) SetupWithManager(mgr ctrl.Manager, to Coordinator) error {
	c.Coordinator = to
	if err := c.counts.register(c.Metrics); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("elastic").
		For(&v1alpha1.Gang{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			g, ok := o.(*v1alpha1.Gang)
			return ok && givenUp(g)
		}))).Complete(c)
	if err != nil {
		return fmt.Errorf("registering the elastic controller: %w", err)
	}
	return c.watch(mgr)
}

func givenUp(g *v1alpha1.Gang) bool {
	return g.Status.Run != nil && g.Status.Run.Verdict != nil && g.Status.Run.Verdict.Reason != v1alpha1.ReasonFinished
}

// Reconcile makes sure that the job of a given-up gang fails, also after the coordinator that gave it up has ended, and that none of its
// pods is left running.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !givenUp(g) {
		return ctrl.Result{}, nil
	}
	j, err := c.live(ctx, keyOf(g))
	if err != nil || j == nil {
		return ctrl.Result{}, err
	}
	v := recordOf(g.Status.Run).Verdict
	w := j.kind.Fail(j.obj, failure(*v, true))
	left := grace - time.Since(v.At)
	switch {
	case left > 0 && !j.over():
		return ctrl.Result{RequeueAfter: left}, c.stop(ctx, j, *v)
	case !j.over():
		err = c.write(ctx, j, w)
	case left > 0 && w.Evict:
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if err != nil || !w.Evict {
		return ctrl.Result{}, err
	}
	return c.endPods(ctx, g)
}

// endPods has the pods evicted that a kind leaves running whose job has failed, and looks again until none is left: its controller may
// have been about to create one.
func (c *Controller) endPods(ctx context.Context, g *v1alpha1.Gang) (ctrl.Result, error) {
	pods := &corev1.PodList{}
	if err := c.Client.List(ctx, pods, client.InNamespace(g.Namespace), client.MatchingFields{PodsByGang: g.Name}); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing the pods of gang %s/%s: %w", g.Namespace, g.Name, err)
	}
	result := ctrl.Result{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !membership.MadeFor(pod, types.UID(g.Spec.JobRef.UID)) || membership.Ended(pod) {
			continue
		}
		result.RequeueAfter = evictAgain
		if membership.Replaced(pod) {
			continue
		}
		if err := c.mark(ctx, pod, kinds.Release{}, pod.ResourceVersion); err != nil {
			return ctrl.Result{}, err
		}
	}
	return result, nil
}
