package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	// noticeEvery and noticesAtOnce bound how fast events that were held are written: 500 a second.
	noticeEvery   = 200 * time.Millisecond
	noticesAtOnce = 100
	// lastAtOnce is the same for the end, when the process has little time left.
	lastAtOnce = 200
)

// The reasons of the events by which kube-scheduler tells that a pod was bound, and that it was not.
const (
	scheduled = "Scheduled"
	failed    = "FailedScheduling"
)

// notices holds kube-scheduler's events about members that were bound until no gang is on its way to its nodes: each
// is a write as dear as the binding itself, and the API server would do both at the same time. None is left out but by a
// process that dies before flush.
type notices struct {
	// patience is how long an event is held at most.
	patience time.Duration
	// placing says whether a gang is on its way.
	placing func() bool

	mu sync.Mutex
	// held are oldest first; ending: nothing is held any more. Guarded by mu.
	held   []notice
	ending bool
}

type notice struct {
	since time.Time
	tell  func()
}

// hold tells later; false: the caller is to tell now.
func (n *notices) hold(now time.Time, tell func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.patience == 0 || n.ending {
		return false
	}
	n.held = append(n.held, notice{now, tell})
	return true
}

// flush tells all that is held, while the context lasts.
func (n *notices) flush(ctx context.Context) {
	for {
		n.mu.Lock()
		n.ending = true
		k := min(len(n.held), lastAtOnce)
		now := n.held[:k:k]
		n.held = n.held[k:]
		n.mu.Unlock()
		for _, one := range now {
			one.tell()
		}
		select {
		case <-time.After(noticeEvery): // recorders write aside
		case <-ctx.Done():
			return
		}
		if k == 0 {
			return
		}
	}
}

// run tells until the context ends.
func (n *notices) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, one := range n.due(time.Now()) {
			one.tell()
		}
	}, noticeEvery)
}

// due takes out what is to be told now.
func (n *notices) due(now time.Time) []notice {
	placing := n.placing()
	n.mu.Lock()
	defer n.mu.Unlock()
	k := 0
	for k < len(n.held) && k < noticesAtOnce && (!placing || now.Sub(n.held[k].since) >= n.patience) {
		k++
	}
	due := n.held[:k:k]
	if n.held = n.held[k:]; len(n.held) == 0 {
		n.held = nil
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
		key, member := r.p.mine(pod)
		switch now := time.Now(); {
		case !member:
		case reason == scheduled && r.p.notices.hold(now, tell):
			return
		case reason == failed && !r.p.gangs.News(key, pod.UID, fmt.Sprintf(note, args...), now):
			return
		}
	}
	tell()
}

// recording is a framework with such a recorder.
type recording struct {
	framework.Framework
	recorder events.EventRecorderLogger
}

func (f recording) EventRecorder() events.EventRecorderLogger { return f.recorder }

// holdNotices puts our recorders into the scheduler's profiles.
func (s *Station) holdNotices(sched *scheduler.Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range sched.Profiles {
		if p := s.plugins[name]; p != nil {
			sched.Profiles[name] = recording{Framework: f, recorder: recorder{f.EventRecorder(), p}}
		}
	}
}
