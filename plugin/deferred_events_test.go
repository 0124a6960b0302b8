package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/internal/eventually"
)

func TestNoticesWaitForGangsOnTheirWay(t *testing.T) {
	now, placing := time.Now(), true
	n := &deferredEvents{timeout: 30 * time.Second, placing: func() bool { return placing }}
	for range deferredEventsAtOnce + 1 {
		n.deferEvent(eventAt(now))
	}
	n.deferEvent(eventAt(now.Add(time.Second)))
	if got := len(n.due(now.Add(29 * time.Second))); got != 0 {
		t.Errorf("%d are due while a gang is being placed", got)
	}
	if got := len(n.due(now.Add(30 * time.Second))); got != deferredEventsAtOnce {
		t.Errorf("%d are due at once", got)
	}
	if got := len(n.due(now.Add(30 * time.Second))); got != 1 {
		t.Errorf("%d are due, one has reached the timeout", got)
	}
	placing = false
	if got := len(n.due(now.Add(2 * time.Second))); got != 1 || len(n.queued) != 0 {
		t.Errorf("%d are due, %d are queued", got, len(n.queued))
	}
}

func eventAt(now time.Time) *eventsv1.Event {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}
	return newEvent("scheduler", pod, v1.EventTypeNormal, scheduled, "Binding", "Successfully assigned n/p to node", now)
}

// slowly counts the events that are written, each within the time that a request takes.
func slowly(written *atomic.Int32, request time.Duration) func(context.Context, *eventsv1.Event) error {
	return func(ctx context.Context, _ *eventsv1.Event) error {
		select {
		case <-time.After(request):
			written.Add(1)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// When the process terminates, it first writes its deferred events, even if a gang is being placed, and those that are recorded meanwhile.
// The wait ends with the last write, also if the API server is slow, or when its time is over.
func TestWhatIsHeldIsToldAtTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		request time.Duration
		events  int32
		written int32
		within  time.Duration
	}{
		"fast":     {time.Millisecond, 2*deferredEventsAtOnce + 1, 2*deferredEventsAtOnce + 1, time.Second},
		"slow":     {50 * time.Millisecond, 2*deferredEventsAtOnce + 1, 2*deferredEventsAtOnce + 1, 2200 * time.Millisecond},
		"too slow": {4 * time.Second, 10 * eventWriters, 2 * eventWriters, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var written atomic.Int32
				n := &deferredEvents{timeout: time.Hour, placing: func() bool { return true }, create: slowly(&written, c.request)}
				for range c.events - 1 {
					n.deferEvent(eventAt(time.Now()))
				}
				go n.run(ctx)
				time.Sleep(time.Minute)
				if written.Load() != 0 {
					t.Errorf("%d were written while a gang was being placed", written.Load())
				}
				go func() { time.Sleep(time.Millisecond); n.deferEvent(eventAt(time.Now())) }()
				limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				n.flush(limit)
				if took := time.Since(began); written.Load() != c.written || took > c.within {
					t.Errorf("%d were written in %v", written.Load(), took)
				}
			})
		})
	}
}

// TestWritesOfEventsAreRepeated: an event reaches an API server that was away for a minute. One that it refuses is not repeated. No try
// takes more than its time.
func TestWritesOfEventsAreRepeated(t *testing.T) {
	kind := schema.GroupResource{Resource: "events"}
	away, busy, done := io.ErrUnexpectedEOF, apierrors.NewTooManyRequests("later", 1), errors.New("written")
	for name, c := range map[string]struct {
		answers       []error // nil: none until the request's context ends
		tries         int
		after, ending time.Duration
	}{
		"away":          {[]error{away, nil, busy, away, away, done}, 6, 5*eventPause + requestTimeout, 5*lastPause + requestTimeout},
		"answer lost":   {[]error{away, apierrors.NewAlreadyExists(kind, "e")}, 2, eventPause, lastPause},
		"refused":       {[]error{apierrors.NewForbidden(kind, "e", io.EOF), done}, 1, 0, 0},
		"broken":        {[]error{apierrors.NewInternalError(io.EOF), done}, 1, 0, 0},
		"away for good": {slices.Repeat([]error{away}, 2*eventTries), eventTries, (eventTries - 1) * eventPause, (eventTries - 1) * lastPause},
	} {
		for _, ending := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", ending ", ending), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					tries, after := 0, c.after
					if ending {
						after = c.ending
					}
					n := &deferredEvents{timeout: time.Hour, ending: ending, placing: func() bool { return false }}
					n.create = func(ctx context.Context, _ *eventsv1.Event) error {
						tries++
						answer := c.answers[tries-1]
						if answer == nil {
							<-ctx.Done()
							return ctx.Err()
						}
						if answer == done {
							return nil
						}
						return answer
					}
					n.deferEvent(eventAt(time.Now()))
					began := time.Now()
					go n.run(ctx)
					for n.left() > 0 && time.Since(began) < time.Hour {
						time.Sleep(deferredEventEvery)
					}
					slack := time.Duration(tries+1) * deferredEventEvery
					if took := time.Since(began); tries != c.tries || took < after || took > after+slack {
						t.Errorf("%d tries in %v, want %d in %v", tries, took, c.tries, after)
					}
				})
			})
		}
	}
}

func (n *deferredEvents) left() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unwritten
}

// TestEventsNeedOneConnection: a batch of events is written over one connection, although the API server accepts only 100 requests at a
// time on each.
func TestEventsNeedOneConnection(t *testing.T) {
	var connections, written atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Millisecond)
		written.Add(1)
		w.WriteHeader(http.StatusConflict) // as for an event that exists
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	c, err := eventsclient.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	create := writeEvents(c)
	if err := create(t.Context(), eventAt(time.Now())); !apierrors.IsAlreadyExists(err) { // connects
		t.Fatal(err)
	}
	n := &deferredEvents{timeout: time.Hour, placing: func() bool { return false }, create: create}
	for range deferredEventsAtOnce {
		n.deferEvent(eventAt(time.Now()))
	}
	go n.run(t.Context())
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n.flush(limit)
	if written.Load() != deferredEventsAtOnce+1 || connections.Load() != 1 {
		t.Errorf("%d events over %d connections", written.Load()-1, connections.Load())
	}
}

// TestADeferredEventLooksLikeOthers: it has the fields that kube-scheduler's recorder writes.
func TestADeferredEventLooksLikeOthers(t *testing.T) {
	c := fake.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer broadcaster.Shutdown()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u", ResourceVersion: "7"}}
	broadcaster.NewRecorder(scheme.Scheme, "profile").Eventf(pod, nil, v1.EventTypeNormal, scheduled, "Binding", "to %s", "node")
	var want eventsv1.Event
	eventually.Holds(t, "the recorder's event", func() (bool, any) {
		for _, a := range c.Actions() {
			if create, ok := a.(clienttesting.CreateAction); ok {
				want = *create.GetObject().(*eventsv1.Event)
				return true, nil
			}
		}
		return false, c.Actions()
	})
	got := newEvent("profile", pod, v1.EventTypeNormal, scheduled, "Binding", "to node", want.EventTime.Time)
	got.Name, want.Name = "", "" // both are of the pod's name and the time
	if !equality.Semantic.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// Each member gets its event "Scheduled", possibly later, by the client of deferred events.
func TestEveryMemberIsToldOf(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be told of", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range []string{"g-0", "g-1"} {
			if all := strings.Join(w.events[name], "\n"); strings.Count(all, "Scheduled: Successfully assigned") != 1 {
				return false
			}
		}
		return true
	})
	if n := len(w.eventClient.Actions()); n != 2 {
		t.Errorf("%d writes of deferred events", n)
	}
}

// If a gang is refused again with the same message, no further event is written. With another message an event is written.
func TestARefusalIsSaidOnce(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("the refusal to be told", func() bool { return len(w.failures("g-0")) == 1 })
	planned := w.plugin.measures.plans.WithLabelValues(answerRefused).(prometheus.Histogram)
	for more := count(t, planned) + 4; count(t, planned) < more && t.Context().Err() == nil; {
		w.plugin.wake(klog.Background(), key("g"))
		w.attempted()
	}
	again := func() bool { // the event recorder patches one event per pod and reason
		return slices.ContainsFunc(w.client.Actions(), func(a clienttesting.Action) bool {
			patch, ok := a.(clienttesting.PatchAction)
			return ok && a.GetResource().Resource == "events" && strings.HasPrefix(patch.GetName(), "g-0")
		})
	}
	if again() {
		t.Error("it was told again")
	}
	w.create(node("c", 1))
	w.until("the new count to be told", again)
}
