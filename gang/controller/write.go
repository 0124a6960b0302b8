package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/jobs"
)

// maxNote is the greatest length of an event's note at the API server.
const maxNote = 1024

// write writes the wanted status to the Gang, and then events about what changed.
func (c *Controller) write(
	ctx context.Context,
	g *v1alpha1.Gang,
	job *jobs.Job,
	want v1alpha1.GangStatus,
	now time.Time,
) (reconcile.Result, error) {
	result := reconcile.Result{}
	if want.Phase == v1alpha1.PhaseRunning || want.Phase == v1alpha1.PhaseRecovering {
		result.RequeueAfter = refreshEvery
	}
	have := ownPart(g.Status)
	if equality.Semantic.DeepEqual(have, want) {
		return result, nil
	}
	if wait := interval(have, want) - now.Sub(c.lastWritten(g.UID)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	patch, err := applyOf(g, want)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := c.Client.Status().Apply(
		ctx,
		client.ApplyConfigurationFromUnstructured(patch),
		client.FieldOwner(FieldManager),
		client.ForceOwnership,
	); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return reconcile.Result{}, nil // collected meanwhile
		}
		return reconcile.Result{}, fmt.Errorf("writing the status of Gang %s/%s: %w", g.Namespace, g.Name, err)
	}
	c.setWritten(g.UID, now)
	c.emitPlaced(job, g, want)
	return result, nil
}

// statusOf returns this controller's part of the status. A condition keeps the time of its last change. A condition that Assess no longer
// returns is removed.
func statusOf(g *v1alpha1.Gang, known status.JobGang, s status.Status, now time.Time) v1alpha1.GangStatus {
	out := v1alpha1.GangStatus{Phase: s.Phase, Nodes: s.Nodes, Members: known.Members, Notes: known.Notes}
	status.Figures(&out, &g.Spec, g.Status.Run, now)
	for _, had := range g.Status.Conditions {
		if slices.ContainsFunc(s.Conditions, func(c status.Condition) bool { return c.Type == had.Type }) {
			out.Conditions = append(out.Conditions, *had.DeepCopy())
		}
	}
	for _, c := range s.Conditions {
		value := metav1.ConditionFalse
		switch {
		case c.Unknown:
			value = metav1.ConditionUnknown
		case c.True:
			value = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: c.Type, Status: value, Reason: c.Reason, Message: c.Message,
			ObservedGeneration: g.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
	return out
}

// ownPart returns the status without the parts of the scheduler and the coordinator.
func ownPart(s v1alpha1.GangStatus) v1alpha1.GangStatus {
	own := *s.DeepCopy()
	own.Placement, own.Run = nil, nil
	return own
}

// interval is the shortest time between the last write and one that changes have to want.
func interval(have, want v1alpha1.GangStatus) time.Duration {
	have, want = withoutFigures(have), withoutFigures(want)
	switch {
	case equality.Semantic.DeepEqual(have, want):
		return figuresEvery
	case want.Phase != v1alpha1.PhaseRecovering && // then the messages say what is repaired
		equality.Semantic.DeepEqual(withoutCounts(have), withoutCounts(want)):
		return min(figuresEvery, time.Duration(len(want.Members)/hundred)*countsEvery)
	default:
		return 0
	}
}

// withoutCounts returns the status without what the state of single pods changes: where each is, how many are bound and attached, and the
// messages of conditions, most of which have counts.
func withoutCounts(s v1alpha1.GangStatus) v1alpha1.GangStatus {
	s.Nodes, s.Members, s.Conditions = "", nil, slices.Clone(s.Conditions)
	for i := range s.Conditions {
		s.Conditions[i].Message = ""
	}
	return s
}

// withoutFigures returns the status without the figures that change all the time.
func withoutFigures(s v1alpha1.GangStatus) v1alpha1.GangStatus {
	s.Step, s.SavedStep, s.SavedAt, s.GoodputPercent, s.CapacityPercent = 0, 0, nil, nil, nil
	return s
}

// applyOf returns the apply configuration with exactly this controller's part of the status.
func applyOf(g *v1alpha1.Gang, status v1alpha1.GangStatus) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return nil, fmt.Errorf("encoding the status of Gang %s: %w", g.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
	u.SetNamespace(g.Namespace)
	u.SetName(g.Name)
	u.SetUID(g.UID) // so that a successor of the same name is never written
	return u, nil
}

// emitPlaced writes an event when the condition Placed changed: the gang was placed, or refused with other counts. emitPlaced writes none
// while pods are still being created.
func (c *Controller) emitPlaced(job *jobs.Job, g *v1alpha1.Gang, after v1alpha1.GangStatus) {
	was := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionPlaced)
	now := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionPlaced)
	if now == nil || was != nil && was.Reason == now.Reason && was.Message == now.Message {
		return
	}
	kind := corev1.EventTypeWarning
	switch {
	case now.Status == metav1.ConditionTrue && was != nil && was.Status == metav1.ConditionTrue:
		return
	case now.Status == metav1.ConditionTrue:
		kind = corev1.EventTypeNormal
	case now.Reason == v1alpha1.ReasonWaitingForMembers, after.Phase == v1alpha1.PhaseFinished, after.Phase == v1alpha1.PhaseFailed:
		return
	}
	if !c.noteNews(job.Key(), string(job.UID)+now.Reason+now.Message) {
		return
	}
	// The recorder merges events that differ only in their note. The Gang's resource version, which changes with the answer, keeps them
	// apart.
	c.emitEvents(job, g, g, kind, now.Reason, "Place", now.Message)
}

// emitEvents writes an event on the job, where users look, and the same on the Gang.
func (c *Controller) emitEvents(job *jobs.Job, g *v1alpha1.Gang, related runtime.Object, kind, reason, action, note string) {
	note = note[:min(len(note), maxNote)]
	c.Recorder.Eventf(job.Object(), related, kind, reason, action, "%s", note)
	c.Recorder.Eventf(g, related, kind, reason, action, "%s", note)
}

// emitTaken writes an event on each other job of a name, which gets no Gang: one event per job that has the Gang.
func (c *Controller) emitTaken(holder *jobs.Job, all []*jobs.Job) {
	now := map[types.UID]types.UID{}
	for _, job := range all {
		if job.UID != holder.UID && job.DeletionTimestamp == nil {
			now[job.UID] = holder.UID
		}
	}
	c.mu.Lock()
	before := c.taken[holder.Key()]
	if c.taken[holder.Key()] = now; len(now) == 0 {
		delete(c.taken, holder.Key())
	}
	c.mu.Unlock()
	for _, job := range all {
		if by, is := now[job.UID]; is && before[job.UID] != by {
			c.Recorder.Eventf(job.Object(), holder.Object(), corev1.EventTypeWarning, v1alpha1.ReasonGangNameTaken, "Create",
				"this %s has no Gang, and its ranks do not start: %s has the Gang of this name; create it again under another name",
				job.TypeMeta.Kind, holder)
		}
	}
}

// noteNews reports whether an event is not the last one of the job, and records it as such.
func (c *Controller) noteNews(job types.NamespacedName, what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := c.notified[job] == what
	c.notified[job] = what
	return !same
}

func (c *Controller) forget(job types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.notified, job)
	delete(c.had, job)
	delete(c.taken, job)
	delete(c.refusals, job)
	delete(c.requests, job)
	delete(c.groups, job)
}

// noteGang records that a job has its Gang.
func (c *Controller) noteGang(job *jobs.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.had[job.Key()] = job.UID
}

func (c *Controller) hadGang(job *jobs.Job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.had[job.Key()] == job.UID
}

func (c *Controller) lastWritten(uid types.UID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written[uid]
}

// setWritten records a write, and drops the times that no longer delay a write.
func (c *Controller) setWritten(uid types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, at := range c.written {
		if now.Sub(at) > figuresEvery {
			delete(c.written, other)
		}
	}
	c.written[uid] = now
}
