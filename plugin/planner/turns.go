package planner

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// comes is how long a woken gang may take to come for its turn.
const comes = 5 * time.Second

// kept is how long the time of a namespace's last turn and the refusal of a gang's last turn are stored.
const kept = 10 * time.Minute

// turns schedules work that takes long while no pod is scheduled: after each turn there is none until its cooldown is over, so that all
// together take at most a tenth of the time. Namespaces have turns in rotation, gangs of a namespace in the order in which they asked.
type turns struct {
	// exists reports whether a gang still exists.
	exists func(types.NamespacedName) bool
	now    func() time.Time

	mu   sync.Mutex
	next time.Time // when the next turn may begin
	busy bool      // a turn is under way
	of   map[types.NamespacedName]*turn
	// served is, by namespace, the time of its last turn.
	served map[string]time.Time
	// called is the gang that was woken for the next turn.
	called types.NamespacedName
	passes time.Time
}

// turn is the state of a gang that asked for a turn.
type turn struct {
	// since is when it began to wait; zero: it does not wait. wake makes the scheduler plan it.
	since time.Time
	wake  func()
	// refusal is the result of its last turn, at that time.
	refusal *gang.Refusal
	at      time.Time
}

func newTurns(exists func(types.NamespacedName) bool, now func() time.Time) *turns {
	return &turns{exists: exists, now: now, of: map[types.NamespacedName]*turn{}, served: map[string]time.Time{}}
}

// take returns nil if the gang may begin; then done must be called. Otherwise it returns the gang's last refusal, or none if it has none,
// and wakes the gang when its turn comes.
func (t *turns) take(key types.NamespacedName, now time.Time, wake func(), none *gang.Refusal) *gang.Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[key]
	if own == nil {
		own = &turn{}
		t.of[key] = own
	}
	own.wake = wake
	if own.since.IsZero() {
		own.since = now
		time.AfterFunc(t.next.Sub(now), t.call)
	}
	if !t.busy && !now.Before(t.next) && t.pick(now, key) == key {
		own.since, t.called, t.busy = time.Time{}, types.NamespacedName{}, true
		return nil
	}
	if own.refusal == nil {
		return none
	}
	last := *own.refusal
	return &last
}

// done ends a turn that began at that time. take returns its refusal until the gang's next turn.
func (t *turns) done(key types.NamespacedName, refusal *gang.Refusal, began, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy, t.next, t.served[key.Namespace] = false, now.Add(Cooldown(now.Sub(began))), now
	maps.DeleteFunc(t.served, func(_ string, at time.Time) bool { return now.Sub(at) > kept })
	maps.DeleteFunc(t.of, func(other types.NamespacedName, of *turn) bool {
		return !t.exists(other) || of.since.IsZero() && now.Sub(of.at) > kept
	})
	delete(t.of, key)
	if len(t.of) > 0 {
		time.AfterFunc(t.next.Sub(now), t.call)
	}
	if refusal != nil {
		t.of[key] = &turn{refusal: refusal, at: now}
	}
}

// call wakes the gang whose turn it is, if no turn is under way.
func (t *turns) call() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); !t.busy && !now.Before(t.next) {
		t.pick(now, types.NamespacedName{})
	}
}

// pick returns the gang whose turn it is, and wakes it unless it is the one that asks. A woken gang that does not come loses its turn.
func (t *turns) pick(now time.Time, asks types.NamespacedName) types.NamespacedName {
	if of := t.of[t.called]; of != nil && !of.since.IsZero() {
		if now.Before(t.passes) {
			return t.called
		}
		delete(t.of, t.called)
		t.served[t.called.Namespace] = now
	}
	t.called = types.NamespacedName{}
	var waiting []types.NamespacedName
	for key, of := range t.of {
		if !of.since.IsZero() && (key == asks || t.exists(key)) {
			waiting = append(waiting, key)
		}
	}
	if len(waiting) == 0 {
		return t.called
	}
	first := slices.MinFunc(waiting, func(a, b types.NamespacedName) int {
		return cmp.Or(
			t.served[a.Namespace].Compare(t.served[b.Namespace]),
			t.of[a].since.Compare(t.of[b].since),
			cmp.Compare(a.String(), b.String()),
		)
	})
	if first != asks {
		t.called, t.passes = first, now.Add(comes)
		time.AfterFunc(comes, t.call)
		go t.of[first].wake()
	}
	return first
}

// key is the gang being planned.
func (s *planCycle) key() types.NamespacedName {
	key, _ := s.p.gangOf(s.snapshot.Members[0].Pod)
	return key
}

// paced reports whether the plan needs turns: not a preview, and not a what-if, which are rare.
func (s *planCycle) paced() bool {
	return s.snapshot.Leader != "" && s.tree == s.p.tree
}

// takeTurn returns a refusal while the gang must wait for its turn.
func (s *planCycle) takeTurn(t *turns) *gang.Refusal {
	wanted := 0
	for _, m := range s.snapshot.Members {
		if m.State == gangcache.Pending {
			wanted++
		}
	}
	key, logger := s.key(), klog.FromContext(s.ctx)
	return t.take(
		key,
		s.p.now(),
		func() { s.p.config.Wake(logger, key) },
		&gang.Refusal{Reason: gang.WaitingForMembers, Undecided: true, Wanted: wanted, Nodes: len(s.nodes),
			Message: gang.Count(
				wanted,
				"pod",
				"pods",
			) + " wanted: a plan with so many shapes of pods, or rules among them, waits for its turn; to plan it at once give the pods the same shape and no rules among themselves"},
	)
}
