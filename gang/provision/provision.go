// Package provision decides about the request by which a gang asks an autoscaler for nodes for all of its pods, or
// for none: when it is created, created again and removed, and its text for users. It promises that a gang has at
// most one request, and that a failed one is followed by another after a bounded pause.
package provision

import (
	"fmt"
	"time"
)

// Phase is what the autoscaler says of a request.
type Phase string

const (
	// Made: nothing yet.
	Made Phase = "was made"
	// Accepted: it looks for nodes.
	Accepted Phase = "was accepted"
	// Retried: it found none, and tries again by itself.
	Retried Phase = "is tried again"
	// Provisioned: the nodes are there, or on their way.
	Provisioned Phase = "was provisioned"
	// Failed, Expired and Revoked are final: no nodes, not used in time, taken back.
	Failed  Phase = "failed"
	Expired Phase = "expired"
	Revoked Phase = "was revoked"
)

// over says whether the autoscaler does nothing more for the request.
func (p Phase) over() bool { return p == Failed || p == Expired || p == Revoked }

// Request is one that stands.
type Request struct {
	// Name is the object's, Class how the autoscaler is to find nodes, Pods for how many.
	Name, Class string
	Pods        int
	// Attempt counts from 1 those that were made for the same lack.
	Attempt int
	Phase   Phase
	// Why is what the autoscaler says to it, Since from when on.
	Why   string
	Since time.Time
}

// View is what is known of a gang that asks in this way.
type View struct {
	// Class is the one that its job names.
	Class string
	// Short is how many pods wait for lack of room where more nodes would do; 0: that is not what the gang waits for.
	Short int
	// Done: all pods are on nodes, or none is to be any more.
	Done bool
	// Request is nil where none stands.
	Request *Request
}

// Action is what is to be done.
type Action string

const (
	// Keep leaves all as it is.
	Keep Action = "keep"
	// Make makes a request, and removes the one that stands.
	Make Action = "make"
	// Remove removes it.
	Remove Action = "remove"
)

// Decision is an Action; Attempt is that of the request to make, Again when a failed one is to be followed.
type Decision struct {
	Action  Action
	Attempt int
	Again   time.Time
}

// firstPause and longestPause bound how long a request that failed stands before the next one, which is twice as long each time.
const (
	firstPause   = time.Minute
	longestPause = 30 * time.Minute
)

// Decide says what is to be done about a gang's request.
func Decide(v View, now time.Time) Decision {
	r := v.Request
	switch {
	case r == nil && (v.Done || v.Short == 0):
		return Decision{Action: Keep}
	case r == nil:
		return Decision{Action: Make, Attempt: 1}
	case v.Done:
		return Decision{Action: Remove}
	case v.Short == 0:
		return Decision{Action: Keep}
	case r.Pods != v.Short || r.Class != v.Class:
		return Decision{Action: Make, Attempt: 1}
	case !r.Phase.over():
		return Decision{Action: Keep}
	}
	if at := r.Since.Add(pause(r.Attempt)); at.After(now) {
		return Decision{Action: Keep, Again: at}
	}
	return Decision{Action: Make, Attempt: r.Attempt + 1}
}

func pause(attempt int) time.Duration { return min(firstPause<<min(attempt-1, 5), longestPause) }

// Text is what people read of a request that stands.
func Text(r Request, d Decision) string {
	attempt := ""
	if r.Attempt > 1 {
		attempt = fmt.Sprintf(", attempt %d,", r.Attempt)
	}
	text := fmt.Sprintf("ProvisioningRequest %s (%s) for %d pods%s %s", r.Name, r.Class, r.Pods, attempt, r.Phase)
	if r.Why != "" {
		text += ": " + r.Why
	}
	if !d.Again.IsZero() {
		text += "; the next one is made at " + d.Again.UTC().Format(time.TimeOnly) + " UTC"
	}
	return text
}
