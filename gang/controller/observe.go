package controller

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/observe"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/jobs"
)

// observe writes the state of an observed Job, and what Holdfast would have done about its failures. Its pods have no label of Holdfast, so
// they are read from the API server: when the Job's own status changes, and every refreshEvery. The Gang's notes have the findings for
// which an event was written.
func (c *Controller) observe(ctx context.Context, g *v1alpha1.Gang, job *jobs.Job) (reconcile.Result, error) {
	pods := &corev1.PodList{}
	if err := c.Live.List(ctx, pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the pods of %s: %w", job, err)
	}
	nodes := &corev1.NodeList{}
	if err := c.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodes: %w", err)
	}
	outages := map[string]v1alpha1.NodeOutage{}
	for i := range nodes.Items {
		if o, err := v1alpha1.NodeOutageOf(&nodes.Items[i]); err == nil && o != nil {
			outages[nodes.Items[i].Name] = *o
		}
	}
	gangs := &v1alpha1.GangList{}
	if err := c.Client.List(ctx, gangs, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing Gangs: %w", err)
	}
	now := c.Now()
	seen := status.GatherObserved(jobStatus(job), pods.Items, outages, status.RecoveryFigures(gangs.Items))
	result, err := c.write(ctx, g, job, statusOf(g, seen.JobGang, status.Assess(seen.View), now), now)
	if err != nil {
		return result, err
	}
	for _, f := range observe.News(seen.Findings, g.Status.Notes) {
		c.metrics.wouldHave.WithLabelValues(f.Reason).Inc()
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: f.Pod},
		}
		c.emitEvents(job, g, pod, corev1.EventTypeNormal, f.Reason, "Observe", f.Text())
	}
	if !seen.View.JobEnded && result.RequeueAfter == 0 {
		result.RequeueAfter = refreshEvery
	}
	return result, nil
}
