package controller

import (
	"context"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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

// The pods of a job that has ended or is being deleted hold GPUs: the coordinator ends them at once. It needs neither the Gang nor the
// record for that, which go with the job.

// reportOver reports to the coordinator which jobs of a gang's pods are over, and returns them.
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

// Over says whether the Job is gone, has ended or is being deleted.
func (c *Controller) Over(ctx context.Context, key coordinator.Key) (bool, error) {
	return c.isOver(ctx, key, true)
}

// isOver asks the API server itself where a pod of the job is being deleted or what is kept of it shows its end: that may be
// stale, and the consequence is final.
func (c *Controller) isOver(ctx context.Context, key coordinator.Key, going bool) (bool, error) {
	if !going {
		named, err := c.Jobs.Named(ctx, jobName(key))
		if err != nil {
			return false, err
		}
		for _, j := range named {
			if string(j.UID) == key.Job && !j.State.Ended {
				return false, nil
			}
		}
	}
	j, err := c.live(ctx, key)
	return err == nil && (j == nil || j.over()), err
}

// jobTurned passes changes of a batch Job that decide whether a gang's pods are wanted: it ends, is deleted, suspended or
// resumed.
var jobTurned = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // it has no pods yet, or they are looked at
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after, ok := bothJobs(e.ObjectOld, e.ObjectNew)
		if !ok {
			return false
		}
		was, is := kinds.JobState(before), kinds.JobState(after)
		return was.Ended != is.Ended || was.Suspended != is.Suspended
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func bothJobs(a, b client.Object) (x, y *batchv1.Job, ok bool) {
	x, first := a.(*batchv1.Job)
	y, second := b.(*batchv1.Job)
	return x, y, first && second
}

// gangOfJob names the gang of a batch Job that was opted in.
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
