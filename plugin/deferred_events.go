package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	// deferredEventEvery and deferredEventsAtOnce limit the rate at which deferred events are written: 1,500 a second.
	deferredEventEvery   = 200 * time.Millisecond
	deferredEventsAtOnce = 300
	// eventRequests limits the requests for deferred events under way. client-go sends all requests over one connection; beyond the 100
	// that the API server accepts on it, each further one begins a TLS handshake, which costs both sides more than the event.
	eventRequests = 16
)

// The reasons of kube-scheduler's events for a pod that was bound, and for one that was not.
const (
	scheduled = "Scheduled"
	failed    = "FailedScheduling"
)

// deferredEvents defers kube-scheduler's events about bound members until no gang is being placed: writing an event costs as much as a
// binding. An event is lost only if the process dies before flush.
type deferredEvents struct {
	// timeout is the longest that an event is deferred.
	timeout time.Duration
	// placing reports whether a gang is being placed.
	placing func() bool

	mu sync.Mutex
	// queued are oldest first; ending: no event is deferred any more. Guarded by mu.
	queued []deferredEvent
	ending bool
}

type deferredEvent struct {
	since time.Time
	emit  func()
}

// deferEvent queues an event; false: the caller must emit it now.
func (n *deferredEvents) deferEvent(now time.Time, emit func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timeout == 0 || n.ending {
		return false
	}
	n.queued = append(n.queued, deferredEvent{now, emit})
	return true
}

// flush emits all queued events until the context ends.
func (n *deferredEvents) flush(ctx context.Context) {
	for {
		n.mu.Lock()
		n.ending = true
		k := min(len(n.queued), deferredEventsAtOnce)
		now := n.queued[:k:k]
		n.queued = n.queued[k:]
		n.mu.Unlock()
		for _, one := range now {
			one.emit()
		}
		select {
		case <-time.After(deferredEventEvery): // recorders write asynchronously
		case <-ctx.Done():
			return
		}
		if k == 0 {
			return
		}
	}
}

// run emits events until the context ends.
func (n *deferredEvents) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, one := range n.due(time.Now()) {
			one.emit()
		}
	}, deferredEventEvery)
}

// due removes and returns the events to be emitted now.
func (n *deferredEvents) due(now time.Time) []deferredEvent {
	placing := n.placing()
	n.mu.Lock()
	defer n.mu.Unlock()
	k := 0
	for k < len(n.queued) && k < deferredEventsAtOnce && (!placing || now.Sub(n.queued[k].since) >= n.timeout) {
		k++
	}
	due := n.queued[:k:k]
	if n.queued = n.queued[k:]; len(n.queued) == 0 {
		n.queued = nil
	}
	return due
}

// pacedSink writes events of a recorder, at most so many at a time as running holds.
type pacedSink struct {
	events.EventSink
	running chan struct{}
}

func (s pacedSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	select {
	case s.running <- struct{}{}:
		defer func() { <-s.running }()
		return s.EventSink.Create(ctx, event)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pacedRecorder returns a recorder that writes until the context ends.
func pacedRecorder(ctx context.Context, c kubernetes.Interface, profile string, running chan struct{}) (events.EventRecorderLogger, error) {
	broadcaster := events.NewBroadcaster(pacedSink{&events.EventSinkImpl{Interface: c.EventsV1()}, running})
	return broadcaster.NewRecorder(scheme.Scheme, profile), broadcaster.StartRecordingToSinkWithContext(ctx)
}

// recorder is a framework's event recorder. It defers events about bound members to paced, and emits no refusal twice.
type recorder struct {
	events.EventRecorderLogger
	paced events.EventRecorderLogger
	p     *Plugin
}

func (r recorder) WithLogger(logger klog.Logger) events.EventRecorderLogger {
	return recorder{r.EventRecorderLogger.WithLogger(logger), r.paced.WithLogger(logger), r.p}
}

func (r recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	emitBy := func(to events.EventRecorder) { to.Eventf(regarding, related, eventType, reason, action, note, args...) }
	if pod, ok := regarding.(*v1.Pod); ok {
		emitNow := true
		if key, member := r.p.gangOf(pod); member {
			emitNow = r.record(key, pod, reason, func() string { return fmt.Sprintf(note, args...) }, func() { emitBy(r.paced) })
		}
		if !emitNow {
			return
		}
	}
	emitBy(r.EventRecorderLogger)
}

// record defers an event about a member or drops a repeated one; emitNow: the caller must emit it now.
func (r recorder) record(key types.NamespacedName, pod *v1.Pod, reason string, note func() string, later func()) (emitNow bool) {
	now := time.Now()
	switch reason {
	case scheduled:
		deferred := r.p.deferredEvents.deferEvent(now, later)
		return !deferred
	case failed:
		return r.p.gangs.RecordNotice(key, pod.UID, note(), now)
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

// deferEvents installs a recorder in each of the scheduler's profiles. It writes deferred events until the context ends.
func (s *Instances) deferEvents(ctx context.Context, sched *scheduler.Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := make(chan struct{}, eventRequests)
	for name, f := range sched.Profiles {
		p := s.plugins[name]
		if p == nil {
			continue
		}
		paced, err := pacedRecorder(ctx, f.ClientSet(), name, running)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Scheduled events of gangs' pods are not deferred", "profile", name)
			continue
		}
		sched.Profiles[name] = recording{Framework: f, recorder: recorder{f.EventRecorder(), paced, p}, p: p}
	}
}
