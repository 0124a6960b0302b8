package plugin

import (
	"context"
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

// When the process terminates, it first writes its deferred events, even if a gang is being placed, and defers no further event. The wait
// ends with the last write, also if the API server is slow.
func TestWhatIsHeldIsToldAtTheEnd(t *testing.T) {
	for request, most := range map[time.Duration]time.Duration{time.Millisecond: time.Second, 50 * time.Millisecond: 2200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var written atomic.Int32
			n := &deferredEvents{timeout: time.Hour, placing: func() bool { return true }, create: slowly(&written, request)}
			for range 2*deferredEventsAtOnce + 1 {
				n.deferEvent(eventAt(time.Now()))
			}
			go n.run(ctx)
			time.Sleep(time.Minute)
			if written.Load() != 0 {
				t.Errorf("%d were written while a gang was being placed", written.Load())
			}
			began := time.Now()
			n.flush(t.Context())
			if took := time.Since(began); written.Load() != 2*deferredEventsAtOnce+1 || took > most {
				t.Errorf("%d were written in %v, at %v each", written.Load(), took, request)
			}
			if n.deferEvent(eventAt(time.Now())) {
				t.Error("an event was deferred after that")
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var written atomic.Int32
		n := &deferredEvents{timeout: time.Hour, placing: func() bool { return true }, create: slowly(&written, 4*time.Second)}
		for range 10 * eventWriters {
			n.deferEvent(eventAt(time.Now()))
		}
		go n.run(ctx)
		limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n.flush(limit); written.Load() != 2*eventWriters {
			t.Errorf("%d were written in the time there was", written.Load())
		}
	})
}

// TestWritesOfEventsAreRepeated: an event reaches an API server that was away for a minute. One that it refuses is not repeated.
func TestWritesOfEventsAreRepeated(t *testing.T) {
	pods := schema.GroupResource{Resource: "events"}
	for name, c := range map[string]struct {
		answers []error
		tries   int
	}{
		"away":          {[]error{io.ErrUnexpectedEOF, context.DeadlineExceeded, apierrors.NewTooManyRequests("later", 1), apierrors.NewInternalError(io.EOF), nil}, 5},
		"answer lost":   {[]error{io.ErrUnexpectedEOF, apierrors.NewAlreadyExists(pods, "e")}, 2},
		"refused":       {[]error{apierrors.NewForbidden(pods, "e", io.EOF), nil}, 1},
		"away for good": {slices.Repeat([]error{io.ErrUnexpectedEOF}, 2*eventTries), eventTries},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				n := &deferredEvents{timeout: time.Hour, create: func(context.Context, *eventsv1.Event) error { tries++; return c.answers[tries-1] }}
				n.deferEvent(eventAt(time.Now()))
				if n.write(t.Context(), n.queued[0]); tries != c.tries || n.unwritten != 0 {
					t.Errorf("%d tries, %d are unwritten", tries, n.unwritten)
				}
			})
		})
	}
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
	n.flush(t.Context())
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
