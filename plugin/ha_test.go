package plugin

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/serve"
)

// stamped returns a bound pod with the stamp of a scheduler that was placing the pod together with others.
func stamped(p *v1.Pod, node string, youngest time.Time, others ...*v1.Pod) *v1.Pod {
	p.Annotations[v1alpha1.AnnotationInitialPlacement] = gangcache.StampText(youngest, slices.Values(append(others, p)))
	return on(p, node)
}

// A scheduler died between two bindings of a gang. The next scheduler completes the gang if it can.
func TestAHalfPlacementIsCompletedByTheNextScheduler(t *testing.T) {
	then := at(1000)
	first, second := created(memberPod("g", 0, 2, 2), then), created(memberPod("g", 1, 2, 2), then)
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), stamped(first, "a", then, second), second)
	stamped := first.Annotations[v1alpha1.AnnotationInitialPlacement]
	w.until("the other to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	if d := w.deleted(); len(d) != 0 {
		t.Errorf("deleted %v", d)
	}
	if stamp := w.pod("g-1").Annotations[v1alpha1.AnnotationInitialPlacement]; stamp != stamped {
		t.Errorf("the second half carries the stamp %q", stamp)
	}
}

// A scheduler that cannot complete a gang rolls back what an earlier scheduler bound, unless the gang was complete before.
func TestAHalfPlacementIsUndoneByTheNextScheduler(t *testing.T) {
	then := at(1000)
	planned := created(memberPod("g", 1, 2, 2), then)
	for _, c := range []struct {
		name   string
		second *v1.Pod
		undone bool
	}{
		{"a pod that was to be placed with it", planned, true},
		{"a pod that came in the place of another", created(again("g", 1, 2, 2), then.Add(time.Minute)), false},
		{"a pod that came in the place of another within a second", created(again("g", 1, 2, 2), then), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, extras{}, node("a", 2), stamped(created(memberPod("g", 0, 2, 2), then), "a", then, planned), c.second)
			w.until("the refusal", w.says("g", "1 pod wanted (1 of 2 are on nodes), 0 fit"))
			if c.undone {
				w.until("the first half to be taken back", func() bool { return w.where("g-0") == "gone" })
				return
			}
			w.attempted()
			if at := w.where("g-0"); at != "a" {
				t.Errorf("g-0 is %q", at)
			}
		})
	}
}

// Only bindings of an initial placement have a stamp.
func TestAMemberThatIsReplacedCarriesNoStamp(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	if _, _, ok := gangcache.StampOf(w.pod("g-0")); !ok {
		t.Error("no stamp on a pod of a forming gang")
	}
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	w.remove("g-1")
	w.knows(1)
	w.create(again("g", 1, 2, 2))
	w.until("it to be bound", w.boundTo(map[string]string{"g-1-again": "b"}))
	if _, stamp, ok := gangcache.StampOf(w.pod("g-1-again")); ok {
		t.Errorf("stamped %q", stamp)
	}
}

// A replica that does not lead watches all objects and writes nothing. It answers a query with that fact.
func TestAFollowerWritesNothing(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2), on(memberPod("g", 0, 2, 2), "a"), memberPod("g", 1, 2, 2), memberPod("h", 0, 2, 2))
	w.knows(2)
	w.plugin.gangs.SweepLapsed(time.Now(), 0)
	w.client.ClearActions()
	w.create(memberPod("h", 1, 2, 2))
	w.until("the follower to know it", func() bool { return w.plugin.gangs.Leader(key("h")) != nil })
	if w.instances.Leads() {
		t.Error("a follower thinks that it leads")
	}
	if _, err := w.instances.Preview(w.ctx, []*v1.Pod{memberPod("i", 0, 1, 1)}); err != serve.ErrNotLeading {
		t.Errorf("a follower answered: %v", err)
	}
	for _, a := range w.client.Actions() {
		reads := slices.Contains([]string{"get", "list", "watch"}, a.GetVerb())
		if ours := a.GetVerb() == "create" && a.GetResource().Resource == "pods"; !reads && !ours {
			t.Errorf("a follower did %v", a)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.placements) != 0 {
		t.Errorf("a follower wrote %v", w.placements)
	}
}

// The leader dies at one of its bindings, and its later requests are lost. The next leader takes over: each gang is complete or waits as a
// whole, and no pod is bound twice.
func TestALeaderThatDiesInAPlacement(t *testing.T) {
	for seed := range seeds.All(t, int64(8)) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			rng := rand.New(rand.NewSource(seed))
			var objects []runtime.Object
			for i := range 7 {
				objects = append(objects, node(fmt.Sprint("n", i), 2))
			}
			for g := range 3 {
				for slot := range 3 {
					objects = append(objects, created(memberPod(fmt.Sprint("g", g), slot, 3, 2), at(1000)))
				}
			}
			var once sync.Once
			dead := make(chan struct{})
			last := 1 + rng.Intn(6)
			w := newWorld(t, extras{before: func(w *world) {
				w.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					select {
					case <-dead:
						return a.GetVerb() != "list" && a.GetVerb() != "get" && a.GetVerb() != "watch", nil, fmt.Errorf("the scheduler that asks this is dead")
					default:
						return false, nil, nil
					}
				})
				w.onBind = func(string, string) {
					if last--; last == 0 {
						once.Do(func() { close(dead) })
					}
				}
			}}, objects...)
			// Two gangs of three pods fit, so at most six bindings are made.
			w.until("the leader to die or to be done", func() bool {
				select {
				case <-dead:
					return true
				default:
					w.mu.Lock()
					defer w.mu.Unlock()
					return len(w.binds) == 6
				}
			})
			w.takeOver(dead, &once)
			w.settled(3, 3)
			w.checkWhole(t, 3, 3)
			w.checkBoundOnce(t)
		})
	}
}

// takeOver stops the scheduler and starts another one, with empty memory, on the same API server.
func (w *world) takeOver(dead chan struct{}, once *sync.Once) {
	w.t.Helper()
	once.Do(func() { close(dead) })
	w.stop()
	w.client.Lock()
	w.client.ReactionChain = w.client.ReactionChain[1:] // the requests of the dead leader end
	w.client.Unlock()
	w.mu.Lock()
	w.onBind = nil
	w.mu.Unlock()
	w.succeed()
}

// succeed stops the scheduler if it runs, and starts another one, with empty memory, on the same API server. succeed drops earlier events.
func (w *world) succeed() {
	w.t.Helper()
	w.stop()
	w.mu.Lock()
	clear(w.placements)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.ctx = ctx
	w.start(ctx, cancel, extras{})
}

// The next scheduler makes the reservation again from the same facts: for the gang that has been complete and waiting the longest, before
// any other gang gets room.
func TestAReservationIsMadeAgainByTheNextScheduler(t *testing.T) {
	busy, now := on(pod("busy", 2), "a"), metav1.Now()
	busy.Spec.ActiveDeadlineSeconds, busy.Status.StartTime = ptr.To(int64(3600)), &now
	w := newWorld(
		t,
		extras{},
		node("a", 2),
		node("b", 2),
		busy,
		created(memberPod("big", 0, 2, 2), at(1000)),
		created(memberPod("big", 1, 2, 2), at(1000)),
	)
	reserved := w.says("big", "is reserved for it, expected to be free at")
	w.until("room to be reserved", reserved)
	w.create(created(pod("late", 2), at(2000)))
	w.attempted()
	w.succeed()
	w.until("room to be reserved again", reserved)
	w.attempted()
	if at := w.where("late"); at != "" {
		t.Fatalf("a pod that says nothing went into reserved room, on %s", at)
	}
	w.remove("busy")
	w.until("the gang to be placed", w.boundTo(map[string]string{"big-0": "*", "big-1": "*"}))
}

// The next scheduler tries a rejecting node again, and excludes the node after two rejections.
func TestANodeThatRejectsIsTriedAgainByTheNextScheduler(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	for round := range 2 {
		w.aRejectsTwice()
		if round == 0 {
			w.remove("g-0")
			w.succeed()
		}
	}
}

// settled re-creates pods that were rolled back. settled waits until two gangs are bound and the others wait.
func (w *world) settled(gangs, size int) {
	w.t.Helper()
	w.until("two gangs to be placed and one to wait", func() bool {
		whole, none := 0, 0
		for g := range gangs {
			bound := 0
			for slot := range size {
				name := fmt.Sprintf("g%d-%d", g, slot)
				switch w.where(name) {
				case "":
				case "gone":
					w.create(created(memberPod(fmt.Sprint("g", g), slot, size, 2), at(2000)))
				default:
					bound++
				}
			}
			switch bound {
			case size:
				whole++
			case 0:
				none++
			}
		}
		return whole == 2 && none == gangs-2
	})
}

func (w *world) checkBoundOnce(t *testing.T) {
	t.Helper()
	deleted := map[string]int{}
	for _, name := range w.deleted() {
		deleted[name]++
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	times := map[string]int{}
	for _, b := range w.binds {
		name, _, _ := strings.Cut(b, " ")
		if times[name]++; times[name] > 1+deleted[name] {
			t.Errorf("%s was bound %d times and deleted %d times", name, times[name], deleted[name])
		}
	}
}
