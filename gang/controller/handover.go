package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// A gang that Volcano's scheduler places has a PodGroup: the user's, that of the kind's own controller, or one that is made here, after the
// first pod of each of its roles. Volcano's API may come and go, so that nothing watches it: the group is looked at while a pod waits for
// a node, each change of which pod Volcano writes on the pod too.

const (
	// groupAgain is how often the group of a gang that waits is read, and the events about it, which are in no cache of the API server;
	// groupSoonest is how often at most the group is read when its pods change.
	groupAgain   = 10 * time.Second
	groupSoonest = 2 * time.Second
)

var (
	// errGroupNotRead: whether there is a group is not known.
	errGroupNotRead = errors.New("reading it")
	// errNoGroupYet: the kind's controller may create one, before any pod, or pods that it is made by are missing.
	errNoGroupYet = errors.New("it does not exist yet")

	errVolcanoNotServed = errors.New("the cluster serves no " + handover.Kind.GroupVersion().String() +
		": install Volcano, or create the job without schedulerName: " + handover.Scheduler)
)

// handed is what was seen of a gang's group, and when.
type handed struct {
	job     types.UID
	name    string
	at      time.Time
	group   *handover.Group
	problem string
	// yet: there is none, and pods or the kind's controller may still bring it.
	yet bool
	// queue is what Volcano said last of the group's queue, queueAt when that was listed.
	queue   string
	queueAt time.Time
}

// saidOfGroup is what a gang's PodGroup says.
type saidOfGroup struct {
	// answer is why the gang is not placed; nil: Volcano does not place it, or has not been asked to.
	answer *v1alpha1.PlacementStatus
	// held: no pod is created before Volcano lets the group in.
	held bool
	// note is what is wrong with the group.
	note string
}

// handOver creates the PodGroup of a gang that Volcano places, and reads it; again is when to read it again.
func (c *Controller) handOver(
	ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, known status.View, pods []corev1.Pod, now time.Time,
) (said saidOfGroup, again time.Duration) {
	holders := membership.Holders(job.UID, known.Size, pods)
	like, waiting := volcanoPods(holders)
	name := nameOfGroup(job, holders, like)
	if name == "" || known.JobEnded || job.State.Suspended {
		return saidOfGroup{}, 0
	}
	view := handover.View{
		Name:    name,
		Size:    known.Size,
		OnNodes: known.OnNodes(),
		Begun:   known.Begun(),
	}
	placed := view.OnNodes >= view.Size
	key := job.Key()
	c.mu.Lock()
	last := c.groups[key]
	c.mu.Unlock()
	done := placed && last.group != nil && last.group.MinMember >= int64(view.Size)
	another, came := last.job != job.UID || last.name != view.Name, last.yet && like != nil
	if another || came || !done && now.Sub(last.at) >= groupSoonest {
		if another {
			last = handed{job: job.UID, name: view.Name}
		}
		last = c.lookAtGroup(ctx, g, job, last, holders, now)
		c.mu.Lock()
		c.groups[key] = last
		c.mu.Unlock()
	}
	if last.yet {
		return saidOfGroup{}, groupAgain
	}
	view.Group, view.Problem, view.Queue = last.group, last.problem, last.queue
	if waiting != nil {
		view.Pod = handover.PodText(waiting)
	}
	if said.note = view.Note(); !placed || last.group == nil || said.note != "" {
		again = groupAgain
	}
	answer := view.Answer()
	said.answer, said.held = &answer, like == nil
	return said, again
}

// nameOfGroup is that of the group that a gang's pods are in, where Volcano places them; "": it does not. Before there is any pod it is
// that of the group that the kind's own controller creates first.
func nameOfGroup(job *jobs.Job, holders []*corev1.Pod, like *corev1.Pod) string {
	if like != nil {
		return like.Annotations[handover.GroupKey]
	}
	if slices.ContainsFunc(holders, func(pod *corev1.Pod) bool { return pod != nil }) {
		return "" // another scheduler's pods
	}
	switch kind := job.Kind.(type) {
	case kinds.VolcanoJob:
		if job.Scheduler == handover.Scheduler {
			return kind.PodGroup(job.Object())
		}
	case kinds.PyTorchJob: // whose operator also writes the scheduler's name
		if job.Scheduler == handover.Scheduler || job.Scheduler == "" {
			return job.Name
		}
	}
	return ""
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
	ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, last handed, holders []*corev1.Pod, now time.Time,
) handed {
	out := handed{job: last.job, name: last.name, at: now}
	u, err := c.groupOf(ctx, g, job, last.name, holders, now)
	if errors.Is(err, errGroupNotRead) && last.group != nil {
		last.at = now
		return last
	}
	if err != nil {
		out.problem, out.yet = handover.Text(err.Error()), errors.Is(err, errNoGroupYet)
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

// groupOf returns the group of that name, which is made if there is none, the gang's pods name none of the user's, and the kind's own
// controller makes none.
func (c *Controller) groupOf(
	ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, name string, holders []*corev1.Pod, now time.Time,
) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(handover.Kind)
	err := c.Live.Get(ctx, types.NamespacedName{Namespace: g.Namespace, Name: name}, u)
	like, _ := volcanoPods(holders)
	ofVolcano, isVolcano := job.Kind.(kinds.VolcanoJob)
	switch {
	case meta.IsNoMatchError(err) && like == nil && !isVolcano:
		return nil, errNoGroupYet
	case meta.IsNoMatchError(err):
		return nil, errVolcanoNotServed
	case err == nil:
		return u, foreignGroup(u, g, job)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %w", errGroupNotRead, err)
	case like == nil && (!isVolcano || now.Sub(job.CreationTimestamp.Time) < groupAgain):
		return nil, errNoGroupYet
	case isVolcano && name == ofVolcano.PodGroup(job.Object()):
		return nil, errors.New("it does not exist, and Volcano's controller creates it with the Job: read the Job's events, and check that volcano-controllers runs")
	case name != g.Name:
		return nil, errors.New("it does not exist, and the pods name it: create it")
	}
	roles, err := c.handedRoles(ctx, g, job, holders)
	if err != nil {
		return nil, err
	}
	u = handover.PodGroup(g.Name, roles...)
	unblocking := controllerutil.WithBlockOwnerDeletion(false)
	if err := controllerutil.SetControllerReference(job.Object(), u, c.Client.Scheme(), unblocking); err != nil {
		return nil, fmt.Errorf("making %s its owner: %w", job, err)
	}
	if err := c.Client.Create(ctx, u, client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("creating it: %w", err)
	}
	return u, nil
}

// foreignGroup is what is wrong with a group that is another gang's; nil: it is the gang's own, or its user made it.
func foreignGroup(u *unstructured.Unstructured, g *v1alpha1.Gang, job *jobs.Job) error {
	owner := metav1.GetControllerOf(u)
	made := u.GetLabels()[v1alpha1.LabelGang] != ""
	switch {
	case metav1.IsControlledBy(u, job.Object()):
		return nil
	case made && owner != nil:
		return errors.New("the one that exists belongs to an earlier job of this name, and is deleted with it")
	case made:
		return errors.New("the one that exists was made for an earlier job of this name, which was deleted without it: delete it")
	case owner != nil && u.GetName() == g.Name:
		return fmt.Errorf("the one that exists belongs to %s %s of %s, whose pods Volcano would count with this job's: create the job under another name",
			owner.Kind, owner.Name, owner.APIVersion)
	}
	return nil
}

// handedRoles are the roles of a gang's pods, each with one of them: a batch Job has one, others are read.
func (c *Controller) handedRoles(ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, holders []*corev1.Pod) ([]handover.Role, error) {
	if job.IsBatch() {
		like, _ := volcanoPods(holders)
		return []handover.Role{{Pods: g.Spec.Members, Like: like}}, nil
	}
	read, err := c.roles(ctx, job)
	if err != nil {
		return nil, err
	}
	var roles []handover.Role
	for i := range read {
		role := &read[i]
		at := slices.IndexFunc(holders, func(pod *corev1.Pod) bool { return pod != nil && membership.GangRole(pod) == role.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: there is no pod of role %s", errNoGroupYet, role.Name)
		}
		roles = append(roles, handover.Role{Pods: role.Pods(), Like: holders[at]})
	}
	if len(roles) == 0 {
		return nil, fmt.Errorf("%s is gone", job)
	}
	return roles, nil
}
