// Package provision decides when a gang's ProvisioningRequest is created, re-created and removed, and computes its text
// for users. A ProvisioningRequest requests nodes from an autoscaler, for all pods of the gang that lack room or for
// none of them. A gang has at most one request. A failed request is followed by the next one after a bounded pause.
package provision

import (
	"fmt"
	"time"
)

// Phase is the autoscaler's state of a request.
type Phase string

const (
	// Made: the autoscaler has not answered yet.
	Made Phase = "was made"
	// Accepted: it is searching for nodes.
	Accepted Phase = "was accepted"
	// Retried: it found none, and retries.
	Retried Phase = "is retried"
	// Provisioned: the nodes exist, or are being created.
	Provisioned Phase = "was provisioned"
	// Failed, Expired and Revoked are final: no nodes found, not used in time, withdrawn.
	Failed  Phase = "failed"
	Expired Phase = "expired"
	Revoked Phase = "was revoked"
)

// over reports whether the autoscaler does nothing more for the request.
func (p Phase) over() bool { return p == Failed || p == Expired || p == Revoked }

// Request is an existing request.
type Request struct {
	// Name is the object's name, Class how the autoscaler provisions nodes, Pods the number of pods.
	Name, Class string
	Pods        int
	// Attempt numbers, from 1, the requests for the same lack of nodes.
	Attempt int
	Phase   Phase
	// Why is the autoscaler's message about it, Since its time.
	Why   string
	Since time.Time
}

// View is the state of a gang that requests nodes.
type View struct {
	// Class is the provisioning class of its job.
	Class string
	// Short is how many pods lack room that more nodes would provide; 0: the gang does not wait for nodes.
	Short int
	// Done: all pods are on nodes, or none is needed any more.
	Done bool
	// Request is the existing request, or nil.
	Request *Request
}

// Action is what the controller must do.
type Action string

const (
	// Keep changes nothing.
	Keep Action = "keep"
	// Make creates a request, and removes the existing one.
	Make Action = "make"
	// Remove removes the existing request.
	Remove Action = "remove"
)

// Decision is an Action; Attempt is that of the request to create, Again when the next request follows a failed one.
type Decision struct {
	Action  Action
	Attempt int
	Again   time.Time
}

// firstPause and longestPause bound the pause after a failed request, which doubles each time.
const (
	firstPause   = time.Minute
	longestPause = 30 * time.Minute
)

// Decide returns what to do about a gang's request.
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

// Text is the text of an existing request, for conditions.
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
		text += "; the next one is created at " + d.Again.UTC().Format(time.TimeOnly) + " UTC"
	}
	return text
}
