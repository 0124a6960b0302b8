package controller

import (
	"context"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// The pods of a Job that has ended or is being deleted hold GPUs that somebody waits for: the coordinator is told, so that
// they go at once. What goes with the Job is not needed for that: neither its Gang, nor its record.

// reportOver tells the coordinator which Jobs of a gang's pods are over, and returns them.
func (c *Controller) reportOver(
	ctx context.Context,
	gang types.NamespacedName,
	pods []corev1.Pod,
) (closed map[coordinator.Key]bool, err error) {
	closed = map[coordinator.Key]bool{}
	deleted := map[coordinator.Key]bool{}
	for i := range pods {
		job := membership.JobUID(&pods[i])
		if _, member := membership.GangOf(&pods[i]); member && job != "" && !membership.Ended(&pods[i]) {
			key := coordinator.Key{Namespace: gang.Namespace, Name: gang.Name, Job: string(job)}
			deleted[key] = deleted[key] || pods[i].DeletionTimestamp != nil
		}
	}
	known := c.knownOver(gang, deleted)
	for key, going := range deleted {
		is := known[key]
		if !is {
			is, err = c.isOver(ctx, key, going)
		}
		if err != nil {
			return nil, err
		}
		if is {
			closed[key] = true
			c.Coordinator.Over(key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.over, closed)
	return closed, nil
}

// knownOver are the Jobs of a gang's pods of which it is known that they are over, which is final. Those of which no pod
// is left are forgotten.
func (c *Controller) knownOver(gang types.NamespacedName, pods map[coordinator.Key]bool) map[coordinator.Key]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.over, func(k coordinator.Key, _ bool) bool {
		_, left := pods[k]
		return k.Namespace == gang.Namespace && k.Name == gang.Name && !left
	})
	return maps.Clone(c.over)
}

// jobName names the Job of a gang, which is named as it is.
func jobName(key coordinator.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// Over says whether the Job is gone, has ended or is being deleted.
func (c *Controller) Over(ctx context.Context, key coordinator.Key) (bool, error) {
	return c.isOver(ctx, key, true)
}

// isOver asks the API server itself where a pod of the Job is being deleted or the cache shows the Job's end: the cache
// may be stale, and the consequence is final.
func (c *Controller) isOver(ctx context.Context, key coordinator.Key, going bool) (bool, error) {
	name := jobName(key)
	if !going {
		job := &batchv1.Job{}
		err := c.Client.Get(ctx, name, job)
		if err == nil && string(job.UID) == key.Job && !kinds.JobState(job).Ended || err != nil && !apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	j, err := c.live(ctx, name, key.Job)
	return err == nil && (j == nil || j.over()), err
}

// jobTurned passes changes that decide whether a gang's pods are wanted: its Job ends, is deleted, suspended or
// resumed.
var jobTurned = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // it has no pods yet, or they are looked at
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after, ok := jobs(e.ObjectOld, e.ObjectNew)
		if !ok {
			return false
		}
		was, is := kinds.JobState(before), kinds.JobState(after)
		return was.Ended != is.Ended || was.Suspended != is.Suspended
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func jobs(a, b client.Object) (x, y *batchv1.Job, ok bool) {
	x, first := a.(*batchv1.Job)
	y, second := b.(*batchv1.Job)
	return x, y, first && second
}

// gangOfJob names the gang of a Job that was opted in.
func gangOfJob(_ context.Context, o client.Object) []reconcile.Request {
	job, ok := o.(*batchv1.Job)
	if !ok {
		return nil
	}
	if _, admitted := settings.AdmittedJob(job); !admitted {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(job)}}
}
