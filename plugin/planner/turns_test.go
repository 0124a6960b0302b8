package planner

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/gang"
)

// line has turns, and the gangs that were woken.
type line struct {
	*turns
	woken chan types.NamespacedName
	gone  map[types.NamespacedName]bool
}

func newLine() *line {
	l := &line{woken: make(chan types.NamespacedName, 1000), gone: map[types.NamespacedName]bool{}}
	l.turns = newTurns(func(key types.NamespacedName) bool { return !l.gone[key] }, time.Now)
	return l
}

func of(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

var nothing = &gang.Refusal{Message: "nothing was asked"}

// asks returns the refusal that a gang gets; "": the gang may begin.
func (l *line) asks(key types.NamespacedName) string {
	if r := l.take(key, time.Now(), func() { l.woken <- key }, nothing); r != nil {
		return r.Message
	}
	return ""
}

// plans makes a gang that may begin plan for a time.
func (l *line) plans(key types.NamespacedName, took time.Duration, refusal *gang.Refusal) {
	began := time.Now()
	time.Sleep(took)
	l.done(key, refusal, began, time.Now())
}

// After a plan that found no room no other gang is planned until the cooldown has ended. Then the gang is woken once.
func TestTurnsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := newLine(), of("x", "a")
		if got := l.asks(a); got != "" {
			t.Fatalf("nobody has a turn: %s", got)
		}
		l.plans(a, time.Second, &gang.Refusal{Message: "too few"})
		for range 2 {
			if got := l.asks(a); got != "too few" {
				t.Errorf("again: %s", got)
			}
		}
		time.Sleep(time.Millisecond)
		for i := range 10 {
			if got := l.asks(of("x", fmt.Sprint(i))); got != nothing.Message {
				t.Errorf("a new gang: %q", got)
			}
		}
		time.Sleep(Cooldown(time.Second) - 2*time.Millisecond)
		synctest.Wait()
		if len(l.woken) != 0 || l.asks(a) == "" {
			t.Errorf("%d are woken early", len(l.woken))
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if len(l.woken) != 1 || <-l.woken != a || l.asks(of("x", "9")) == "" || l.asks(a) != "" {
			t.Error("who asked first has no turn")
		}
		l.plans(a, 0, nil)
	})
}

// A gang waits for at most one plan of each other namespace, however many gangs that namespace has.
func TestNamespacesHaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		if l.asks(of("hostile", "0")) != "" {
			t.Fatal("nobody has a turn")
		}
		l.plans(of("hostile", "0"), 5*time.Second, &gang.Refusal{Message: "too few"})
		for i := range 100 {
			l.asks(of("hostile", fmt.Sprint(i)))
			time.Sleep(time.Millisecond)
		}
		l.asks(of("honest", "1"))
		l.asks(of("honest", "2"))
		var served []string
		for range 4 {
			key := <-l.woken
			if got := l.asks(key); got != "" {
				t.Fatalf("%s was woken and hears %s", key, got)
			}
			served = append(served, key.Namespace)
			l.plans(key, 5*time.Second, nil)
		}
		if want := []string{"honest", "hostile", "honest", "hostile"}; !slices.Equal(served, want) {
			t.Errorf("turns went to %v", served)
		}
		if len(l.woken) > 0 || time.Until(l.next) != Cooldown(5*time.Second) {
			t.Errorf("%d more are woken, the next plan waits %s", len(l.woken), time.Until(l.next))
		}
	})
}

// A turn is not kept for a gang that does not come or is gone. A plan that is running is not interrupted.
func TestTurnsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		first := of("z", "first")
		if l.asks(first) != "" {
			t.Fatal("nobody has a turn")
		}
		gone, lazy, keen := of("a", "gone"), of("b", "lazy"), of("c", "keen")
		for _, key := range []types.NamespacedName{gone, lazy, keen} {
			l.asks(key)
			time.Sleep(time.Millisecond)
		}
		l.gone[gone] = true
		l.plans(first, 2*comes, nil)
		if len(l.woken) != 0 {
			t.Errorf("%s is woken while another one plans", <-l.woken)
		}
		if key := <-l.woken; key != lazy {
			t.Errorf("woken is %s", key)
		}
		began := time.Now()
		if l.asks(keen) == "" {
			t.Error("the turn of another one is taken at once")
		}
		if key := <-l.woken; key != keen || time.Since(began) != comes || l.asks(keen) != "" {
			t.Errorf("then woken is %s, after %s", key, time.Since(began))
		}
		l.plans(keen, time.Second, nil)
		l.asks(lazy)
		if key := <-l.woken; key != lazy || l.asks(lazy) != "" {
			t.Errorf("at last woken is %s", key)
		}
		l.plans(lazy, time.Second, &gang.Refusal{})
		time.Sleep(2 * kept)
		if l.asks(first) != "" {
			t.Error("nobody has a turn")
		}
		if l.plans(first, 0, nil); len(l.of) != 0 || len(l.served) != 1 {
			t.Errorf("kept for ever: %v, %v", l.of, l.served)
		}
	})
}
