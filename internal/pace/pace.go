// Package pace bounds what reconciling a large gang costs. Both the events of a gang's pods and the cost of one reconcile grow with the
// number of pods: without a bound a gang of thousands that starts takes the processors of all others.
//
//   - Only events of pods are merged. A change of any other object, and what a reconcile repeats by itself, is not delayed.
//   - The first event after an interval without any is not delayed. The last one is followed by a reconcile within one interval.
//   - Gangs of fewer than 100 pods have no interval.
package pace

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// perHundred is the interval for each full hundred of pods: 0.5 s for 5,000 pods.
	perHundred = 10 * time.Millisecond
	hundred    = 100
)

// Gangs keeps when the events of each large gang's pods may have it reconciled. The zero value is ready to use.
type Gangs struct {
	mu sync.Mutex
	of map[reconcile.Request]*large
}

// large is a gang with an interval.
type large struct {
	interval time.Duration
	// next is when the next event leads to a reconcile at once; waits: a reconcile at that time is queued.
	next  time.Time
	waits bool
}

// Counted sets how many pods a gang has. A gang without pods is forgotten.
func (g *Gangs) Counted(gang reconcile.Request, pods int) {
	interval := time.Duration(pods/hundred) * perHundred
	g.mu.Lock()
	defer g.mu.Unlock()
	switch l := g.of[gang]; {
	case interval == 0:
		delete(g.of, gang)
	case l != nil:
		l.interval = interval
	default:
		if g.of == nil {
			g.of = map[reconcile.Request]*large{}
		}
		g.of[gang] = &large{interval: interval}
	}
}

// after returns in how long an event of a pod has its gang reconciled.
func (g *Gangs) after(gang reconcile.Request, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.of[gang]
	if l == nil {
		return 0
	}
	if l.waits && !now.Before(l.next) { // the queued reconcile began
		l.next, l.waits = l.next.Add(l.interval), false
	}
	if wait := l.next.Sub(now); wait > 0 {
		l.waits = true
		return wait
	}
	l.next, l.waits = now.Add(l.interval), false
	return 0
}

// Events returns a handler of the events of pods, which belong to the gangs that of returns.
func (g *Gangs) Events(of handler.MapFunc) handler.EventHandler {
	enqueue := func(queue workqueue.TypedRateLimitingInterface[reconcile.Request], gangs []reconcile.Request) {
		for _, gang := range gangs {
			queue.AddAfter(gang, g.after(gang, time.Now()))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(q, of(ctx, e.Object))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			now := of(ctx, e.ObjectNew)
			left := slices.DeleteFunc(of(ctx, e.ObjectOld), func(gang reconcile.Request) bool { return slices.Contains(now, gang) })
			enqueue(q, append(now, left...))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(q, of(ctx, e.Object))
		},
	}
}
