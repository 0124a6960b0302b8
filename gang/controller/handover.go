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

// A gang that Volcano's scheduler places has a PodGroup: one that the user created, one of the kind's own controller, or one that this
// controller creates after the first pod of each role exists. Volcano's API may be installed and removed at any time, so PodGroups are not
// watched. The PodGroup is read while a pod waits for a node; Volcano writes each of its changes on that pod, too.

const (
	// groupAgain is the interval at which the PodGroup of a waiting gang is read, together with its events, which no cache of the API
	// server has. groupSoonest is the shortest interval at which the PodGroup is read when its pods change.
	groupAgain   = 10 * time.Second
	groupSoonest = 2 * time.Second
)

var (
	// errGroupNotRead: it is unknown whether the PodGroup exists.
	errGroupNotRead = errors.New("reading it")
	// errNoGroupYet: the kind's controller may still create the PodGroup before any pod, or pods that are needed to create it are missing.
	errNoGroupYet = errors.New("it does not exist yet")

	errVolcanoNotServed = errors.New("the cluster serves no " + handover.Kind.GroupVersion().String() +
		": install Volcano, or create the job without schedulerName: " + handover.Scheduler)
)

// handed is what was last read of a gang's PodGroup, and when.
type handed struct {
	job     types.UID
	name    string
	at      time.Time
	group   *handover.Group
	problem string
	// yet: the PodGroup does not exist, and new pods or the kind's controller may still lead to it.
	yet bool
	// queue is Volcano's last message on the queue of the PodGroup, queueAt when it was read.
	queue   string
	queueAt time.Time
}

// saidOfGroup is what a gang's PodGroup shows.
type saidOfGroup struct {
	// answer is why the gang is not placed; nil: Volcano does not place the gang, or has not received its PodGroup.
	answer *v1alpha1.PlacementStatus
	// held: no pod is created before Volcano admits the PodGroup.
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

// nameOfGroup returns the name of the PodGroup of a gang's pods; "": Volcano does not place them. If no pod exists, it is the name of the
// PodGroup that the kind's own controller creates first.
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
	case kinds.PyTorchJob: // the operator also writes the scheduler's name
		if job.Scheduler == handover.Scheduler || job.Scheduler == "" {
			return job.Name
		}
	}
	return ""
}

// volcanoPods returns a pod of the gang, if Volcano places the gang, and one that waits for a node.
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

// lookAtGroup reads the PodGroup, and creates it if it does not exist. If the PodGroup cannot be read, the last known state stays.
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
		// Only events have the reason. Events of type Warning repeat the condition. Without an event the rest of the answer stays.
		if e, err := c.newestEvent(ctx, u, handover.EventReason, corev1.EventTypeNormal); err == nil {
			out.queue = handover.Text(e.Message)
		}
	}
	return out
}

// groupOf returns the PodGroup of that name. groupOf creates the PodGroup if it does not exist, the gang's pods name none of the user's,
// and the kind's own controller creates none.
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

// foreignGroup returns an error if a PodGroup belongs to another gang; nil: it belongs to this gang, or a user created it.
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

// handedRoles returns the roles of a gang's pods, each with one of its pods. A batch Job has one role; the roles of other kinds are read
// from the object.
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
