package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	// deferredEventEvery and deferredEventsAtOnce bound how fast events that were held are written: 500 a second.
	deferredEventEvery   = 200 * time.Millisecond
	deferredEventsAtOnce = 100
	// lastNow is the same for the end, when the process has little time left.
	lastNow = 200
)

// The reasons of the events by which kube-scheduler tells that a pod was bound, and that it was not.
const (
	scheduled = "Scheduled"
	failed    = "FailedScheduling"
)

// deferredEvents defers kube-scheduler's events about bound members until no gang is being placed: each is a write as
// expensive as the binding itself. None is dropped, except by a process that dies before flush.
type deferredEvents struct {
	// timeout is how long an event is held at most.
	timeout time.Duration
	// placing reports whether a gang is on its way.
	placing func() bool

	mu sync.Mutex
	// queued are oldest first; ending: nothing is held any more. Guarded by mu.
	queued []deferredEvent
	ending bool
}

type deferredEvent struct {
	since time.Time
	emit  func()
}

// deferEvent tells later; false: the caller is to tell now.
func (n *deferredEvents) deferEvent(now time.Time, tell func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timeout == 0 || n.ending {
		return false
	}
	n.queued = append(n.queued, deferredEvent{now, tell})
	return true
}

// flush tells all that is held, while the context lasts.
func (n *deferredEvents) flush(ctx context.Context) {
	for {
		n.mu.Lock()
		n.ending = true
		k := min(len(n.queued), lastNow)
		now := n.queued[:k:k]
		n.queued = n.queued[k:]
		n.mu.Unlock()
		for _, one := range now {
			one.emit()
		}
		select {
		case <-time.After(deferredEventEvery): // recorders write aside
		case <-ctx.Done():
			return
		}
		if k == 0 {
			return
		}
	}
}

// run tells until the context ends.
func (n *deferredEvents) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, one := range n.due(time.Now()) {
			one.emit()
		}
	}, deferredEventEvery)
}

// due takes out what is to be told now.
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

// recorder is a framework's recorder that holds events about members that were bound, and says no refusal twice.
type recorder struct {
	events.EventRecorderLogger
	p *Plugin
}

func (r recorder) WithLogger(logger klog.Logger) events.EventRecorderLogger {
	return recorder{r.EventRecorderLogger.WithLogger(logger), r.p}
}

func (r recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	tell := func() { r.EventRecorderLogger.Eventf(regarding, related, eventType, reason, action, note, args...) }
	if pod, ok := regarding.(*v1.Pod); ok {
		tellNow := true
		if key, member := r.p.gangOf(pod); member {
			tellNow = r.record(key, pod, reason, func() string { return fmt.Sprintf(note, args...) }, tell)
		}
		if !tellNow {
			return
		}
	}
	tell()
}

// record defers an event about a member, or records what it says; tellNow: it is to be emitted now.
func (r recorder) record(key types.NamespacedName, pod *v1.Pod, reason string, note func() string, tell func()) (tellNow bool) {
	now := time.Now()
	switch reason {
	case scheduled:
		deferred := r.p.deferredEvents.deferEvent(now, tell)
		return !deferred
	case failed:
		return r.p.gangs.RecordNotice(key, pod.UID, note(), now)
	default:
		return true
	}
}

// recording is a framework with such a recorder.
type recording struct {
	framework.Framework
	recorder events.EventRecorderLogger
	p        *Plugin
}

func (f recording) EventRecorder() events.EventRecorderLogger { return f.recorder }

// APICacher is where kube-scheduler leaves what it says of a pod that it tried.
func (f recording) APICacher() fwk.APICacher {
	if f.p.conditions == nil {
		return f.Framework.APICacher()
	}
	return memberStatus{f.Framework.APICacher(), f.p}
}

// deferEvents puts our recorders into the scheduler's profiles.
func (s *Instances) deferEvents(sched *scheduler.Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range sched.Profiles {
		if p := s.plugins[name]; p != nil {
			sched.Profiles[name] = recording{Framework: f, recorder: recorder{f.EventRecorder(), p}, p: p}
		}
	}
}
