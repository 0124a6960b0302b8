package controller

import (
	"context"
	"fmt"
	"regexp"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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

// refused is why the Job controller could not make a pod, as it said last; "": it did not since the newest of the pods was made.
func (c *Controller) refused(ctx context.Context, job *batchv1.Job, pods []corev1.Pod, now time.Time) (string, error) {
	list := &corev1.EventList{}
	if err := c.Live.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingFields{"involvedObject.uid": string(job.UID), "reason": failedCreate}); err != nil {
		return "", fmt.Errorf("listing the events of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	since, text := now.Add(-refusedLately), ""
	for i := range pods {
		if made := pods[i].CreationTimestamp.Time; made.After(since) {
			since = made
		}
	}
	for i := range list.Items {
		if at := lastSeen(&list.Items[i]); !at.Before(since) {
			since, text = at, list.Items[i].Message
		}
	}
	return cause.Tail(cause.Printable(attempt.ReplaceAllString(text, "")), maxRefusal), nil
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
