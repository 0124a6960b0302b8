package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	// deferredEventEvery and deferredEventsAtOnce limit the rate at which deferred events are written: 1,500 a second.
	deferredEventEvery   = 200 * time.Millisecond
	deferredEventsAtOnce = 300
	// eventWriters is the number of concurrent writers. client-go sends all requests over one connection; beyond the 100 that the API server
	// accepts on it, each further one begins a TLS handshake, which costs both sides more than the event.
	eventWriters = 16
	// eventTimeout bounds one request. An event is tried eventTries times if the API server cannot be reached, about every eventPause.
	eventTimeout = 5 * time.Second
	eventTries   = 12
	eventPause   = 10 * time.Second
)

// The reasons of kube-scheduler's events for a pod that was bound, and for one that was not.
const (
	scheduled = "Scheduled"
	failed    = "FailedScheduling"
)

// deferredEvents defers kube-scheduler's events about bound members until no gang is being placed: writing an event costs as much as a
// binding.
type deferredEvents struct {
	// timeout is the longest that an event is deferred.
	timeout time.Duration
	// placing reports whether a gang is being placed.
	placing func() bool
	create  func(context.Context, *eventsv1.Event) error

	mu sync.Mutex
	// queued are oldest first, unwritten also counts those that a writer has; ending: no event is deferred any more. Guarded by mu.
	queued    []*eventsv1.Event
	unwritten int
	ending    bool
}

// deferEvent queues an event; false: the caller must emit it now.
func (n *deferredEvents) deferEvent(event *eventsv1.Event) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timeout == 0 || n.ending {
		return false
	}
	n.queued = append(n.queued, event)
	n.unwritten++
	return true
}

// flush has run write all queued events, and waits for that until the context ends.
func (n *deferredEvents) flush(ctx context.Context) {
	for {
		n.mu.Lock()
		n.ending = true
		left := n.unwritten
		n.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-time.After(deferredEventEvery / 10):
		case <-ctx.Done():
			return
		}
	}
}

// run writes events until the context ends.
func (n *deferredEvents) run(ctx context.Context) {
	due := make(chan *eventsv1.Event)
	for range eventWriters {
		go func() {
			for {
				select {
				case event := <-due:
					n.write(ctx, event)
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	const fromBeginning = false // of a batch: the writers may take as long as the interval
	wait.JitterUntilWithContext(ctx, func(context.Context) {
		for _, event := range n.due(time.Now()) {
			select {
			case due <- event:
			case <-ctx.Done():
				return
			}
		}
	}, deferredEventEvery, 0, fromBeginning)
}

// due removes and returns the events to be written now.
func (n *deferredEvents) due(now time.Time) []*eventsv1.Event {
	placing := n.placing()
	n.mu.Lock()
	defer n.mu.Unlock()
	k := 0
	for k < len(n.queued) && k < deferredEventsAtOnce && (!placing || n.ending || now.Sub(n.queued[k].EventTime.Time) >= n.timeout) {
		k++
	}
	due := n.queued[:k:k]
	if n.queued = n.queued[k:]; len(n.queued) == 0 {
		n.queued = nil
	}
	return due
}

// write writes an event. One that the API server refuses, or that does not reach it, is lost.
func (n *deferredEvents) write(ctx context.Context, event *eventsv1.Event) {
	defer func() {
		n.mu.Lock()
		n.unwritten--
		n.mu.Unlock()
	}()
	var err error
	for range eventTries {
		request, cancel := context.WithTimeout(ctx, eventTimeout)
		err = n.create(request, event)
		cancel()
		if err == nil || apierrors.IsAlreadyExists(err) { // written by an earlier try
			return
		}
		if refused(err) {
			break
		}
		select {
		case <-time.After(wait.Jitter(eventPause, 0.25)):
		case <-ctx.Done():
			return
		}
	}
	klog.FromContext(ctx).Error(err, "Event is not written", "event", event.Note, "pod", klog.KRef(event.Regarding.Namespace, event.Regarding.Name))
}

// refused reports whether a repeated request would get the same answer.
func refused(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

func writeEvents(c eventsclient.EventsV1Interface) func(context.Context, *eventsv1.Event) error {
	return func(ctx context.Context, event *eventsv1.Event) error {
		_, err := c.Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
		return err
	}
}

// newEvent returns an event as kube-scheduler's recorder makes it.
func newEvent(profile string, pod *v1.Pod, eventType, reason, action, note string, now time.Time) *eventsv1.Event {
	host, _ := os.Hostname() // like the recorder: an empty one is allowed
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: pod.Namespace, Name: util.GenerateEventName(pod.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: profile,
		ReportingInstance:   profile + "-" + host,
		Action:              action,
		Reason:              reason,
		Regarding: v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Note: note,
		Type: eventType,
	}
}

// recorder is a framework's event recorder. It defers events about bound members, and emits no refusal twice.
type recorder struct {
	events.EventRecorderLogger
	p *Plugin
}

func (r recorder) WithLogger(logger klog.Logger) events.EventRecorderLogger {
	return recorder{r.EventRecorderLogger.WithLogger(logger), r.p}
}

func (r recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	if pod, ok := regarding.(*v1.Pod); ok {
		emitNow := true
		if key, member := r.p.gangOf(pod); member {
			now := time.Now()
			emitNow = r.record(key, newEvent(r.p.handle.ProfileName(), pod, eventType, reason, action, fmt.Sprintf(note, args...), now), now)
		}
		if !emitNow {
			return
		}
	}
	r.EventRecorderLogger.Eventf(regarding, related, eventType, reason, action, note, args...)
}

// record defers an event about a member or drops a repeated one; emitNow: the caller must emit it now.
func (r recorder) record(key types.NamespacedName, event *eventsv1.Event, now time.Time) (emitNow bool) {
	switch event.Reason {
	case scheduled:
		deferred := r.p.deferredEvents.deferEvent(event)
		return !deferred
	case failed:
		return r.p.gangs.RecordNotice(key, event.Regarding.UID, event.Note, now)
	default:
		return true
	}
}

// recording is a framework with a recorder.
type recording struct {
	framework.Framework
	recorder events.EventRecorderLogger
	p        *Plugin
}

func (f recording) EventRecorder() events.EventRecorderLogger { return f.recorder }

// APICacher returns the cache through which kube-scheduler writes the condition of a pod that it tried.
func (f recording) APICacher() fwk.APICacher {
	if f.p.conditions == nil {
		return f.Framework.APICacher()
	}
	return memberStatus{f.Framework.APICacher(), f.p}
}

// deferEvents installs a recorder in each of the scheduler's profiles.
func (s *Instances) deferEvents(sched *scheduler.Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range sched.Profiles {
		if p := s.plugins[name]; p != nil {
			sched.Profiles[name] = recording{Framework: f, recorder: recorder{f.EventRecorder(), p}, p: p}
		}
	}
}
