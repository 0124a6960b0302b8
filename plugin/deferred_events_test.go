package plugin

import (
	"context"
	"fmt"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/internal/eventually"
)

func TestNoticesWaitForGangsOnTheirWay(t *testing.T) {
	now, placing, told := time.Now(), true, 0
	n := &deferredEvents{timeout: 30 * time.Second, placing: func() bool { return placing }}
	tell := func(at time.Time) int {
		told = 0
		for _, one := range n.due(at) {
			one.emit()
		}
		return told
	}
	for range deferredEventsAtOnce + 1 {
		n.deferEvent(now, func() { told++ })
	}
	n.deferEvent(now.Add(time.Second), func() { told++ })
	if got := tell(now.Add(29 * time.Second)); got != 0 {
		t.Errorf("%d were told while a gang was on its way", got)
	}
	if got := tell(now.Add(30 * time.Second)); got != deferredEventsAtOnce {
		t.Errorf("%d were told at once", got)
	}
	if got := tell(now.Add(30 * time.Second)); got != 1 {
		t.Errorf("%d were told, one is as old as patience allows", got)
	}
	placing = false
	if got := tell(now.Add(2 * time.Second)); got != 1 || len(n.queued) != 0 {
		t.Errorf("%d were told, %d are held", got, len(n.queued))
	}
}

// When the process terminates, it first writes its deferred events, even if a gang is being placed, and defers no further event.
func TestWhatIsHeldIsToldAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, told := &deferredEvents{timeout: time.Hour, placing: func() bool { return true }}, 0
		for range 2*deferredEventsAtOnce + 1 {
			n.deferEvent(time.Now(), func() { told++ })
		}
		n.flush(t.Context())
		if told != 2*deferredEventsAtOnce+1 || n.deferEvent(time.Now(), func() {}) {
			t.Errorf("%d were told, %d are held", told, len(n.queued))
		}
		n, told = &deferredEvents{timeout: time.Hour, placing: func() bool { return true }}, 0
		for range 10 * deferredEventsAtOnce {
			n.deferEvent(time.Now(), func() { told++ })
		}
		ctx, cancel := context.WithTimeout(t.Context(), deferredEventEvery+deferredEventEvery/2)
		defer cancel()
		if n.flush(ctx); told != 2*deferredEventsAtOnce {
			t.Errorf("%d were told in the time there was", told)
		}
	})
}

// TestEventsNeedOneConnection: a batch of events is written over one connection, although the API server accepts only 100 requests at a time
// on each.
func TestEventsNeedOneConnection(t *testing.T) {
	var connections, written atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Millisecond)
		written.Add(1)
		w.WriteHeader(http.StatusForbidden) // an answer that client-go does not repeat
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
	c, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("n").Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsForbidden(err) { // connects
		t.Fatal(err)
	}
	recorder, err := pacedRecorder(t.Context(), c, "scheduler", make(chan struct{}, eventRequests))
	if err != nil {
		t.Fatal(err)
	}
	for i := range deferredEventsAtOnce {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p-", i)}}
		recorder.Eventf(pod, nil, v1.EventTypeNormal, scheduled, "Binding", "Successfully assigned")
	}
	eventually.Holds(t, "all events", func() (bool, any) { n := written.Load(); return n == deferredEventsAtOnce+1, n })
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Each member gets its event "Scheduled", possibly later.
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
