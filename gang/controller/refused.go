package controller

import (
	"context"
	"fmt"
	"regexp"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/elastic/cause"
)

const (
	// refusedLately is how old an event may be that says that a pod could not be made: the Job controller tries each minute at least,
	// and of its events about one object one in five minutes comes through.
	refusedLately = 10 * time.Minute
	// refusedAgain is how often they are looked at while pods are missing.
	refusedAgain = 10 * time.Second
	// maxRefusal bounds what of one is repeated.
	maxRefusal = 400
)

// failedCreate is the reason of the Job controller's events where a pod could not be made; attempt is what it says first, with a name
// that is another one each time.
const failedCreate = "FailedCreate"

var attempt = regexp.MustCompile(`^(Error creating: )?(pods "[^"]*" is forbidden: )?`)

// refusal is what the Job controller said last of a pod that it could not make, and when that was looked up.
type refusal struct {
	job     types.UID
	text    string
	at      time.Time
	askedAt time.Time
}

// refused is why the Job controller could not make a pod, as it said last; "": it did not since the newest of the pods was made. A gang is
// reconciled at each change of its pods, and events are in no cache of the API server: they are listed once in refusedAgain at most.
func (c *Controller) refused(ctx context.Context, job *batchv1.Job, pods []corev1.Pod, now time.Time) (string, error) {
	last, err := c.lastRefusal(ctx, job, now)
	if err != nil {
		return "", err
	}
	since := now.Add(-refusedLately)
	for i := range pods {
		if made := pods[i].CreationTimestamp.Time; made.After(since) {
			since = made
		}
	}
	if last.at.Before(since) {
		return "", nil
	}
	return last.text, nil
}

func (c *Controller) lastRefusal(ctx context.Context, job *batchv1.Job, now time.Time) (refusal, error) {
	key := client.ObjectKeyFromObject(job)
	c.mu.Lock()
	last, known := c.refusals[key]
	c.mu.Unlock()
	if known && last.job == job.UID && now.Sub(last.askedAt) < refusedAgain {
		return last, nil
	}
	newest, err := c.newestEvent(ctx, job, failedCreate, "")
	if err != nil {
		return refusal{}, fmt.Errorf("listing the events of Job %s: %w", key, err)
	}
	last = refusal{job: job.UID, askedAt: now, at: lastSeen(&newest), text: newest.Message}
	last.text = cause.Tail(cause.Printable(attempt.ReplaceAllString(last.text, "")), maxRefusal)
	c.mu.Lock()
	c.refusals[key] = last
	c.mu.Unlock()
	return last, nil
}

// newestEvent reads, from the API server itself, the event about an object that was seen last, of a reason, and of a type where one is
// named; the zero Event: there is none.
func (c *Controller) newestEvent(ctx context.Context, about client.Object, reason, kind string) (newest corev1.Event, err error) {
	list := &corev1.EventList{}
	if err := c.Live.List(ctx, list, client.InNamespace(about.GetNamespace()), client.MatchingFields{
		"involvedObject.uid": string(about.GetUID()),
		"reason":             reason,
	}); err != nil {
		return corev1.Event{}, err
	}
	for i := range list.Items {
		if e := &list.Items[i]; (kind == "" || e.Type == kind) && !lastSeen(e).Before(lastSeen(&newest)) {
			newest = *e
		}
	}
	return newest, nil
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
