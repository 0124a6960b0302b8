package pace

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func named(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// Events that follow each other closely are merged into one reconcile per interval, the last one included.
func TestALargeGangIsReconciledAtIntervals(t *testing.T) {
	var g Gangs
	begin := time.Unix(1000, 0)
	var at []time.Duration
	for now := time.Duration(0); now <= time.Second; {
		if wait := g.Wait(named("large"), begin.Add(now)); wait > 0 {
			now += wait
			continue
		}
		g.Reconciled(named("large"), 4_099, begin.Add(now))
		at = append(at, now)
		now += time.Millisecond // the next pod's event
	}
	if want := []time.Duration{0, 400 * time.Millisecond, 800 * time.Millisecond}; !slices.Equal(at, want) {
		t.Errorf("reconciled at %v, want %v", at, want)
	}
}

// A small gang, another gang, and a gang that was left alone for a while are not delayed.
func TestOthersAreNotDelayed(t *testing.T) {
	var g Gangs
	now := time.Unix(1000, 0)
	g.Reconciled(named("small"), 99, now)
	g.Reconciled(named("large"), 5_000, now)
	for _, name := range []string{"small", "other"} {
		if wait := g.Wait(named(name), now); wait != 0 {
			t.Errorf("gang %s waits for %s", name, wait)
		}
	}
	if wait := g.Wait(named("large"), now.Add(499*time.Millisecond)); wait != time.Millisecond {
		t.Errorf("the large gang waits for %s, want 1ms", wait)
	}
	if wait := g.Wait(named("large"), now.Add(500*time.Millisecond)); wait != 0 || len(g.next) > 0 {
		t.Errorf("the large gang waits for %s, and %d gangs are kept", wait, len(g.next))
	}
}
