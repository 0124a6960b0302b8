// Package pace bounds what reconciling a large gang costs. Both the events of a gang's pods and the cost of one reconcile
// grow with the number of pods: without a bound the cost grows with its square, and a gang of thousands that starts takes
// the processors of all others.
//
//   - A gang that was not reconciled lately is reconciled at once.
//   - Gangs of fewer than 100 pods are never delayed.
package pace

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// step is the shortest interval between two reconciles for each full hundred of pods: 0.5 s for 5,000 pods.
const step, stepPods = 10 * time.Millisecond, 100

// Gangs keeps when each gang may be reconciled next. The zero value is ready to use.
type Gangs struct {
	mu   sync.Mutex
	next map[reconcile.Request]time.Time
}

// Wait returns for how long a reconcile must be postponed; 0: it may begin. The caller requeues the gang after that time, which merges all
// events until then into one reconcile.
func (g *Gangs) Wait(gang reconcile.Request, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := g.next[gang].Sub(now); left > 0 {
		return left
	}
	delete(g.next, gang)
	return 0
}

// Reconciled notes that a gang of so many pods is being reconciled. A gang that is gone has no pods, and is forgotten.
func (g *Gangs) Reconciled(gang reconcile.Request, pods int, now time.Time) {
	least := time.Duration(pods/stepPods) * step
	if least == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = map[reconcile.Request]time.Time{}
	}
	g.next[gang] = now.Add(least)
}
