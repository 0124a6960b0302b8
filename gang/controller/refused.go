package controller

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
)

const (
	// refusedLately is the age up to which an event about a pod that could not be created counts. The Job controller tries at least once a
	// minute, and of its events about one object one in five minutes is stored.
	refusedLately = 10 * time.Minute
	// refusedAgain is the interval at which these events are read while pods are missing.
	refusedAgain = 10 * time.Second
	// maxRefusal bounds the text of such an event that is repeated.
	maxRefusal = 400
)

// Reasons of events about a pod that could not be created: those of the Job controller, of Volcano's controller
// (job_controller_actions.go), of training-operator (pod_control.go), and JobSet's about a Job of the set (jobset_controller.go).
const (
	failedCreate    = "FailedCreate"
	failedCreatePod = "FailedCreatePod"
	failedCreateJob = "JobCreationFailed"
)

const jobController = "the Job controller"

// attempt matches the beginning of such a text, with a name that differs at each try for pods of a Job. printed matches an error as Volcano
// prints it.
var (
	attempt = regexp.MustCompile(`^(Error creating: )?(pods "[^"]*" is forbidden: )?`)
	printed = regexp.MustCompile(`^Error creating pods: \[.*?Message:("(?:[^"\\]|\\.)*")`)
)

// refusalText returns the part of an event's text that is shown.
func refusalText(message string) string {
	if m := printed.FindStringSubmatch(message); m != nil {
		if text, err := strconv.Unquote(m[1]); err == nil {
			message = text
		}
	}
	return cause.Tail(cause.Printable(attempt.ReplaceAllString(message, "")), maxRefusal)
}

// refusal is the last event of a controller about a pod that it could not create, and when the event was read.
type refusal struct {
	job      types.UID
	by, text string
	at       time.Time
	askedAt  time.Time
}

// refused returns the last reason why a pod could not be created; the zero value: there was none since the newest of the pods was created.
// A gang is reconciled at each change of its pods, and no cache of the API server has events. So they are listed at most once in
// refusedAgain.
func (c *Controller) refused(ctx context.Context, job *jobs.Job, pods []corev1.Pod, now time.Time) (refusal, error) {
	last, err := c.lastRefusal(ctx, job, now)
	if err != nil {
		return refusal{}, err
	}
	since := now.Add(-refusedLately)
	for i := range pods {
		if made := pods[i].CreationTimestamp.Time; made.After(since) {
			since = made
		}
	}
	if last.at.Before(since) {
		return refusal{}, nil
	}
	return last, nil
}

func (c *Controller) lastRefusal(ctx context.Context, job *jobs.Job, now time.Time) (refusal, error) {
	key := job.Key()
	c.mu.Lock()
	last, known := c.refusals[key]
	c.mu.Unlock()
	if known && last.job == job.UID && now.Sub(last.askedAt) < refusedAgain {
		return last, nil
	}
	newest, by, err := c.newestRefusal(ctx, job)
	if err != nil {
		return refusal{}, fmt.Errorf("listing the events of %s: %w", job, err)
	}
	last = refusal{job: job.UID, askedAt: now, at: lastSeen(&newest), by: by, text: refusalText(newest.Message)}
	c.mu.Lock()
	c.refusals[key] = last
	c.mu.Unlock()
	return last, nil
}

// newestRefusal returns the event about the object for which the pods are created, and the name of the controller that wrote it; the zero
// Event: there is none.
func (c *Controller) newestRefusal(ctx context.Context, job *jobs.Job) (e corev1.Event, by string, err error) {
	switch job.Kind.(type) {
	case kinds.VolcanoJob:
		e, err = c.newestEvent(ctx, job.Object(), failedCreate, "")
		return e, "Volcano's Job controller", err
	case kinds.PyTorchJob:
		e, err = c.newestEvent(ctx, job.Object(), failedCreatePod, "")
		return e, "the training operator", err
	case kinds.JobSet:
		ofJobs, err := c.newestEvent(ctx, job.Object(), failedCreateJob, "")
		if err != nil {
			return corev1.Event{}, "", err
		}
		if e, err = c.newestOfSet(ctx, job); err != nil || !lastSeen(&e).Before(lastSeen(&ofJobs)) {
			return e, jobController, err
		}
		return ofJobs, "the JobSet controller", nil
	}
	e, err = c.newestEvent(ctx, job.Object(), failedCreate, "")
	return e, jobController, err
}

// newestOfSet returns the newest event about a Job of a JobSet that could not create a pod.
func (c *Controller) newestOfSet(ctx context.Context, job *jobs.Job) (corev1.Event, error) {
	list := &corev1.EventList{}
	if err := c.Live.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingFields{
		"involvedObject.kind": "Job",
		"reason":              failedCreate,
	}); err != nil {
		return corev1.Event{}, err
	}
	list.Items = slices.DeleteFunc(list.Items, func(e corev1.Event) bool { // without events of a set whose name begins with this one
		of := e.InvolvedObject
		return of.APIVersion != batchv1.SchemeGroupVersion.String() || !strings.HasPrefix(of.Name, job.Name+"-")
	})
	if len(list.Items) == 0 {
		return corev1.Event{}, nil
	}
	roles, err := c.roles(ctx, job)
	if err != nil {
		return corev1.Event{}, err
	}
	return lastOf(list.Items, func(e *corev1.Event) bool {
		return slices.ContainsFunc(roles, func(r kinds.Role) bool {
			return kinds.JobSet{}.ChildOf(job.Name, r.Name, e.InvolvedObject.Name)
		})
	}), nil
}

// roles returns the roles of a job whose pods are members, read from the API server; none: the job is gone.
func (c *Controller) roles(ctx context.Context, job *jobs.Job) ([]kinds.Role, error) {
	kind, obj, err := c.Jobs.Live(ctx, job.Key(), job.UID)
	if obj == nil {
		return nil, err
	}
	read, _ := kind.Read(obj) // an object that would be refused now was admitted
	return slices.DeleteFunc(read.Roles, func(r kinds.Role) bool { return r.Before || r.Pods() == 0 }), nil
}

// newestEvent reads, from the API server itself, the newest event about an object with this reason and, if one is named, this type; the
// zero Event: there is none.
func (c *Controller) newestEvent(ctx context.Context, about client.Object, reason, kind string) (corev1.Event, error) {
	list := &corev1.EventList{}
	if err := c.Live.List(ctx, list, client.InNamespace(about.GetNamespace()), client.MatchingFields{
		"involvedObject.uid": string(about.GetUID()),
		"reason":             reason,
	}); err != nil {
		return corev1.Event{}, err
	}
	return lastOf(list.Items, func(e *corev1.Event) bool { return kind == "" || e.Type == kind }), nil
}

// lastOf returns the event that was seen last of those that match; the zero Event: none matches.
func lastOf(events []corev1.Event, match func(*corev1.Event) bool) (newest corev1.Event) {
	for i := range events {
		if e := &events[i]; match(e) && !lastSeen(e).Before(lastSeen(&newest)) {
			newest = *e
		}
	}
	return newest
}

func lastSeen(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.EventTime.After(at) {
		at = e.EventTime.Time
	}
	if s := e.Series; s != nil && s.LastObservedTime.After(at) {
		at = s.LastObservedTime.Time
	}
	return at.Truncate(time.Second) // as pods' times are
}
