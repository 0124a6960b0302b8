package pace

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func named(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// of is the gang of a pod: its namespace.
func of(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{named(o.GetNamespace())}
}

func podOf(gang string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: gang}}
}

// reconciles plays an event of a gang's pod at each of these times, and returns when the gang is reconciled.
func reconciles(t *testing.T, pods int, events ...time.Duration) (at []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var g Gangs
		g.Counted(named("g"), pods)
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		handler, began := g.Events(of), time.Now()
		go func() {
			for {
				gang, over := queue.Get()
				if over {
					return
				}
				at = append(at, time.Since(began))
				queue.Done(gang)
			}
		}()
		for _, e := range events {
			time.Sleep(e - time.Since(began))
			handler.Update(t.Context(), event.UpdateEvent{ObjectOld: podOf("g"), ObjectNew: podOf("g")}, queue)
		}
		time.Sleep(time.Minute)
		queue.ShutDown()
		synctest.Wait()
	})
	return at
}

const ms = time.Millisecond

func TestWhenAGangIsReconciled(t *testing.T) {
	var burst []time.Duration
	for now := time.Duration(0); now < 900*ms; now += ms {
		burst = append(burst, now)
	}
	for name, c := range map[string]struct {
		pods         int
		events, want []time.Duration
	}{
		"each event of a small gang":                            {99, []time.Duration{0, 1 * ms, 2 * ms}, []time.Duration{0, 1 * ms, 2 * ms}},
		"a burst of a large gang, at intervals and after it":    {4_099, burst, []time.Duration{0, 400 * ms, 800 * ms, 1200 * ms}},
		"events that are far apart, at once":                    {5_000, []time.Duration{0, 600 * ms, 1200 * ms}, []time.Duration{0, 600 * ms, 1200 * ms}},
		"an event after one that waited, after an interval too": {5_000, []time.Duration{0, 10 * ms, 510 * ms}, []time.Duration{0, 500 * ms, 1000 * ms}},
	} {
		if at := reconciles(t, c.pods, c.events...); !slices.Equal(at, c.want) {
			t.Errorf("%s: reconciled at %v, want %v", name, at, c.want)
		}
	}
}

// A pod that changes its gang has both reconciled. A gang that has become small or is gone has no interval, and is forgotten.
func TestOtherGangs(t *testing.T) {
	var g Gangs
	g.Counted(named("large"), 5_000)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	g.Events(of).Update(t.Context(), event.UpdateEvent{ObjectOld: podOf("small"), ObjectNew: podOf("large")}, queue)
	if n := queue.Len(); n != 2 {
		t.Errorf("%d gangs are reconciled", n)
	}
	now := time.Now()
	if wait := g.after(named("small"), now); wait != 0 {
		t.Errorf("the small gang waits for %s", wait)
	}
	if wait := g.after(named("large"), now); wait == 0 {
		t.Error("the large gang does not wait")
	}
	g.Counted(named("large"), 0)
	if wait := g.after(named("large"), now); wait != 0 || len(g.of) > 0 {
		t.Errorf("a gang without pods waits for %s, and %d gangs are kept", wait, len(g.of))
	}
}
