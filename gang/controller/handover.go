package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/membership"
)

// A gang that Volcano's scheduler places has a PodGroup: the user's, or one that is made here, after the first of its pods. Volcano's API
// may come and go, so that nothing watches it: the group is looked at while a pod waits for a node, each change of which pod Volcano
// writes on the pod too.

const (
	// groupAgain is how often the group of a gang that waits is read, and the events about it, which are in no cache of the API server;
	// groupSoonest is how often at most the group is read when its pods change.
	groupAgain   = 10 * time.Second
	groupSoonest = 2 * time.Second
)

// errGroupNotRead: whether there is a group is not known.
var errGroupNotRead = errors.New("reading it")

var errVolcanoNotServed = errors.New("the cluster serves no " + handover.Kind.GroupVersion().String() +
	": install Volcano, or create the job without schedulerName: " + handover.Scheduler)

// handed is what was seen of a gang's group, and when.
type handed struct {
	job     types.UID
	name    string
	at      time.Time
	group   *handover.Group
	problem string
	// queue is what Volcano said last of the group's queue, queueAt when that was listed.
	queue   string
	queueAt time.Time
}

// handOver creates the PodGroup of a gang that Volcano places, and reads it. answer is why the gang is not placed, nil where Volcano does
// not place it; note is what is wrong with the group, again when to read it again.
func (c *Controller) handOver(
	ctx context.Context, g *v1alpha1.Gang, job *batchv1.Job, known status.View, pods []corev1.Pod, now time.Time,
) (answer *v1alpha1.PlacementStatus, note string, again time.Duration) {
	like, waiting := volcanoPods(membership.Holders(job.UID, known.Size, pods))
	if like == nil || known.JobEnded || ptr.Deref(job.Spec.Suspend, false) {
		return nil, "", 0
	}
	view := handover.View{
		Name:    like.Annotations[handover.GroupKey],
		Size:    known.Size,
		OnNodes: known.OnNodes(),
		Begun:   known.Begun(),
	}
	placed := view.OnNodes >= view.Size
	key := client.ObjectKeyFromObject(job)
	c.mu.Lock()
	last := c.groups[key]
	c.mu.Unlock()
	done := placed && last.group != nil && last.group.MinMember >= int64(view.Size)
	if another := last.job != job.UID || last.name != view.Name; another || !done && now.Sub(last.at) >= groupSoonest {
		if another {
			last = handed{job: job.UID, name: view.Name}
		}
		last = c.lookAtGroup(ctx, g, job, last, like, now)
		c.mu.Lock()
		c.groups[key] = last
		c.mu.Unlock()
	}
	view.Group, view.Problem, view.Queue = last.group, last.problem, last.queue
	if waiting != nil {
		view.Pod = handover.PodText(waiting)
	}
	if note = view.Note(); !placed || last.group == nil || note != "" {
		again = groupAgain
	}
	said := view.Answer()
	return &said, note, again
}

// volcanoPods are a pod of the gang, if Volcano places them, and one of them that waits for a node.
func volcanoPods(holders []*corev1.Pod) (like, waiting *corev1.Pod) {
	for _, pod := range holders {
		if pod == nil || !handover.Is(pod) || pod.Annotations[handover.GroupKey] == "" {
			continue
		}
		if like == nil {
			like = pod
		}
		if waiting == nil && pod.Spec.NodeName == "" {
			waiting = pod
		}
	}
	return like, waiting
}

// lookAtGroup reads the group, which is created if there is none. What was read last stays where it cannot be read now.
func (c *Controller) lookAtGroup(
	ctx context.Context, g *v1alpha1.Gang, job *batchv1.Job, last handed, like *corev1.Pod, now time.Time,
) handed {
	out := handed{job: last.job, name: last.name, at: now}
	u, err := c.groupOf(ctx, g, job, last.name, like)
	if errors.Is(err, errGroupNotRead) && last.group != nil {
		last.at = now
		return last
	}
	if err != nil {
		out.problem = handover.Text(err.Error())
		return out
	}
	group := handover.Read(u)
	out.group = &group
	if !group.Waiting {
		return out
	}
	if out.queue, out.queueAt = last.queue, last.queueAt; now.Sub(last.queueAt) >= groupAgain {
		out.queueAt = now
		// Events alone have the reason. Those that warn repeat the condition; without any the rest of the answer stays.
		if e, err := c.newestEvent(ctx, u, handover.EventReason, corev1.EventTypeNormal); err == nil {
			out.queue = handover.Text(e.Message)
		}
	}
	return out
}

// groupOf returns the group of that name, which is made if there is none and the gang's pods name none of the user's.
func (c *Controller) groupOf(
	ctx context.Context, g *v1alpha1.Gang, job *batchv1.Job, name string, like *corev1.Pod,
) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(handover.Kind)
	err := c.Live.Get(ctx, types.NamespacedName{Namespace: g.Namespace, Name: name}, u)
	switch {
	case meta.IsNoMatchError(err):
		return nil, errVolcanoNotServed
	case err == nil && u.GetLabels()[v1alpha1.LabelGang] != "" && metav1.GetControllerOf(u) != nil && !metav1.IsControlledBy(u, job):
		return nil, errors.New("the one that exists belongs to an earlier job of this name, and is deleted with it")
	case err == nil:
		return u, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %w", errGroupNotRead, err)
	case name != g.Name:
		return nil, errors.New("it does not exist, and the pods name it: create it")
	}
	u = handover.PodGroup(g.Name, g.Spec.Members, like)
	if err := controllerutil.SetControllerReference(job, u, c.Client.Scheme(), controllerutil.WithBlockOwnerDeletion(false)); err != nil {
		return nil, fmt.Errorf("making Job %s its owner: %w", job.Name, err)
	}
	if err := c.Client.Create(ctx, u, client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("creating it: %w", err)
	}
	return u, nil
}
