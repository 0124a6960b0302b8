package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/protocol"
)

// grace is how long the pods of a given-up job have to end by themselves, so that they remain as failed pods with their
// logs and exit codes, before the Job controller deletes what is left.
const grace = 5 * time.Second

// How a Job is made to fail, so that no pod of it comes again whatever its restart policy, its
// backoffLimit and its failure policy say. Both ways are the Job controller's own (1.37:
// pkg/controller/job/job_controller.go, syncJob):
//
//   - spec.backoffLimit may be changed at any time. Lowered to the number of pods that failed so far, the
//     next pod that fails ends the Job in the same sync that counts it, before a replacement is made.
//     The failed pods stay, so that their logs and exit codes can be read. This serves restartPolicy
//     Never, where a pod fails when its container ends.
//   - status condition FailureTarget, once true, is final: the Job controller deletes all pods that are
//     left, makes no more, and turns it into Failed with our reason and message. With restartPolicy
//     OnFailure a container that ends starts again, so that this comes at once; with Never it comes after
//     a grace, for pods that did not end or whose failure a podFailurePolicy ignores.
//
// activeDeadlineSeconds would do as well, but tells people of a deadline that they never set.

// End makes the gang's job fail.
func (c *Controller) End(ctx context.Context, key coordinator.Key, v elastic.Verdict) error {
	g, err := c.gang(ctx, c.Client, key)
	if apierrors.IsNotFound(err) {
		return nil // the job is gone, and its pods go with it
	}
	if err != nil {
		return err
	}
	job, err := c.job(ctx, g)
	if err != nil || job == nil {
		return err
	}
	// A Job that is over already, because its pod was faster, still owes people the reason.
	c.tell(g, g, corev1.EventTypeWarning, string(v.Reason), "GiveUp", verdictNote(v))
	if over(job) {
		return nil
	}
	return c.stop(ctx, job, v)
}

// stop sees to it that no pod of the job comes again.
func (c *Controller) stop(ctx context.Context, job *batchv1.Job, v elastic.Verdict) error {
	if job.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyNever {
		err := c.lowerBackoffLimit(ctx, job)
		if err == nil {
			return nil
		}
		c.Log.Info("the Job's backoffLimit could not be lowered; its pods are deleted instead", "job", client.ObjectKeyFromObject(job), "because", err.Error())
	}
	return c.failJob(ctx, job, v)
}

func (c *Controller) job(ctx context.Context, g *v1alpha1.Gang) (*batchv1.Job, error) {
	return c.live(ctx, types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.JobRef.Name}, g.Spec.JobRef.UID)
}

// live reads a Job from the API server itself; nil: it is gone.
func (c *Controller) live(ctx context.Context, name types.NamespacedName, uid string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	err := c.Live.Get(ctx, name, job)
	if apierrors.IsNotFound(err) || err == nil && string(job.UID) != uid {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading job %s: %w", name, err)
	}
	return job, nil
}

// over says whether the Job has ended or is about to.
func over(job *batchv1.Job) bool {
	for _, cond := range job.Status.Conditions {
		switch cond.Type {
		case batchv1.JobFailureTarget, batchv1.JobFailed, batchv1.JobComplete, batchv1.JobSuccessCriteriaMet:
			if cond.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return job.DeletionTimestamp != nil
}

func (c *Controller) lowerBackoffLimit(ctx context.Context, job *batchv1.Job) error {
	limit := job.Status.Failed
	if u := job.Status.UncountedTerminatedPods; u != nil {
		limit += int32(len(u.Failed))
	}
	if job.Spec.BackoffLimit != nil && *job.Spec.BackoffLimit <= limit {
		return nil
	}
	return c.patch(ctx, job, false, map[string]any{"spec": map[string]any{"backoffLimit": limit}})
}

func (c *Controller) failJob(ctx context.Context, job *batchv1.Job, v elastic.Verdict) error {
	now := metav1.Now()
	return c.patch(ctx, job, true, map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": batchv1.JobFailureTarget, "status": corev1.ConditionTrue, "reason": string(v.Reason), "message": cause.Tail(summary(v), 500),
		"lastProbeTime": now, "lastTransitionTime": now,
	}}}})
}

func (c *Controller) patch(ctx context.Context, job *batchv1.Job, status bool, change map[string]any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encoding a patch of job %s/%s: %w", job.Namespace, job.Name, err)
	}
	p := client.RawPatch(types.StrategicMergePatchType, body)
	target := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}}
	if status {
		err = c.Client.Status().Patch(ctx, target, p, client.FieldOwner(FieldManager))
	} else {
		err = c.Client.Patch(ctx, target, p, client.FieldOwner(FieldManager))
	}
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("patching job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// summary is the verdict in one line.
func summary(v elastic.Verdict) string {
	if v.Cause == nil {
		return fmt.Sprintf("ended with exit code %d", v.ExitCode)
	}
	line := fmt.Sprintf("rank %d in slot %d failed first, with exit code %d (%s)", v.Cause.Rank, v.Cause.Slot, v.Cause.ExitCode, v.Cause.Code)
	switch v.Reason {
	case elastic.ReasonSameFailureTwice:
		line += ", twice in the same way without progress in between"
	case elastic.ReasonNoProgress:
		line += fmt.Sprintf(", after %d restarts without progress", protocol.RestartsWithoutProgress)
	case elastic.ReasonMaxRestarts:
		line += ", after as many restarts as max-restarts allows"
	case elastic.ReasonMemberEnded:
		line += ", and other pods had ended with 0 by then"
	case elastic.ReasonRefused:
		line = fmt.Sprintf("the launcher in slot %d was refused", v.Cause.Slot)
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

// SetupWithManager registers the reconcilers; they run on the leader alone.
func (c *Controller) SetupWithManager(mgr ctrl.Manager, told Coordinator) error {
	c.Coordinator = told
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

// Reconcile makes sure that the job of a given-up gang fails, also where the coordinator that gave it up
// is gone.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !givenUp(g) {
		return ctrl.Result{}, nil
	}
	job, err := c.job(ctx, g)
	if err != nil || job == nil || over(job) {
		return ctrl.Result{}, err
	}
	v := recordOf(g.Status.Run).Verdict
	if left := grace - time.Since(v.At); left > 0 {
		return ctrl.Result{RequeueAfter: left}, c.stop(ctx, job, *v)
	}
	return ctrl.Result{}, c.failJob(ctx, job, *v)
}
