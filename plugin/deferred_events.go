package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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
	// deferredEventEvery and deferredEventsAtOnce limit the rate at which deferred events of a profile are written: 1,500 a second.
	deferredEventEvery   = 200 * time.Millisecond
	deferredEventsAtOnce = 300
	// eventWriters is the number of concurrent writers. client-go sends all requests over one connection; beyond the 100 that the API server
	// accepts on it, each further one begins a TLS handshake, which costs both sides more than the event.
	eventWriters = 16
	// requestTimeout bounds one request. An event is tried eventTries times, with eventPause between two tries, or lastPause at the end of
	// the process.
	requestTimeout = 5 * time.Second
	eventTries     = 12
	eventPause     = 10 * time.Second
	lastPause      = time.Second
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
	// queued are the events that were not tried yet, failed those that are tried again, both oldest first. unwritten also counts those
	// that a writer has; ending: no event waits for gangs any more. Guarded by mu.
	queued, failed []deferredEvent
	unwritten      int
	ending         bool
}

type deferredEvent struct {
	*eventsv1.Event
	// since is when the event was made, or its last try failed.
	since time.Time
	tries int
}

// deferEvent queues an event; false: the caller must emit it now.
func (n *deferredEvents) deferEvent(event *eventsv1.Event) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timeout == 0 {
		return false
	}
	n.queued = append(n.queued, deferredEvent{Event: event, since: event.EventTime.Time})
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
			klog.FromContext(ctx).Info("Scheduled events are not written before the process ends", "events", left)
			return
		}
	}
}

// run writes events until the context ends.
func (n *deferredEvents) run(ctx context.Context) {
	due := make(chan deferredEvent)
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
func (n *deferredEvents) due(now time.Time) []deferredEvent {
	placing := n.placing()
	n.mu.Lock()
	defer n.mu.Unlock()
	timeout, pause := n.timeout, eventPause
	if !placing || n.ending {
		timeout = 0
	}
	if n.ending {
		pause = lastPause
	}
	var first, again []deferredEvent
	first, n.queued = split(n.queued, deferredEventsAtOnce, now.Add(-timeout))
	again, n.failed = split(n.failed, deferredEventsAtOnce-len(first), now.Add(-pause))
	return slices.Concat(first, again)
}

// split returns the first events, at most so many, that wait since then or longer, and the others.
func split(all []deferredEvent, most int, then time.Time) (due, left []deferredEvent) {
	k := 0
	for k < len(all) && k < most && !all[k].since.After(then) {
		k++
	}
	if k == len(all) {
		return all, nil
	}
	return all[:k:k], all[k:]
}

// write tries to write an event.
func (n *deferredEvents) write(ctx context.Context, event deferredEvent) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	err := n.create(request, event.Event)
	cancel()
	written := err == nil || apierrors.IsAlreadyExists(err) // by a try whose answer did not arrive
	event.tries++
	lost := !written && (refused(err) || event.tries == eventTries)
	if lost {
		klog.FromContext(ctx).Error(err, "Event is not written", "event", event.Note, "pod", klog.KRef(event.Namespace, event.Regarding.Name))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if written || lost {
		n.unwritten--
		return
	}
	event.since = time.Now()
	n.failed = append(n.failed, event)
}

// refused reports whether the API server answered, and not that it may answer otherwise later.
func refused(err error) bool {
	_, answered := errors.AsType[*apierrors.StatusError](err)
	busy := apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
	return answered && !busy && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err)
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
			emitNow = r.record(key, pod, eventType, reason, action, fmt.Sprintf(note, args...))
		}
		if !emitNow {
			return
		}
	}
	r.EventRecorderLogger.Eventf(regarding, related, eventType, reason, action, note, args...)
}

// record defers an event about a member or drops a repeated one; emitNow: the caller must emit it now.
func (r recorder) record(key types.NamespacedName, pod *v1.Pod, eventType, reason, action, note string) (emitNow bool) {
	now := time.Now()
	switch reason {
	case scheduled:
		deferred := r.p.deferredEvents.deferEvent(newEvent(r.p.handle.ProfileName(), pod, eventType, reason, action, note, now))
		return !deferred
	case failed:
		return r.p.gangs.RecordNotice(key, pod.UID, note, now)
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
