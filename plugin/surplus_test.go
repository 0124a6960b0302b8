package plugin

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// surplusWorld is a world in which gang g needs two pods, and may have more. Others need all of theirs.
func surplusWorld(t *testing.T, x extras, objects ...runtime.Object) *world {
	x.terms = func(key types.NamespacedName, pod *v1.Pod) (gangcache.Terms, error) {
		if key.Name == "g" {
			return gangcache.Terms{Size: 2, Min: 2}, nil
		}
		return gangcache.OwnTerms(pod)
	}
	w := newWorld(t, x, objects...)
	w.plugin.args.ReservationAfter.Duration = 0
	return w
}

// minimum places the two pods that gang g needs on nodes a and b, with a priority.
func (w *world) minimum(priority int32) {
	w.t.Helper()
	w.create(prior(priority, created(memberPod("g", 0, 2, 2), ago(90)), created(memberPod("g", 1, 2, 2), ago(90)))...)
	w.until("what the gang needs to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("it to be said", func() bool { return w.placement("g").Placed })
}

// refused waits until the surplus pods of g are refused, and then for some cycles of other pods.
func (w *world) refused(pods ...string) {
	w.t.Helper()
	w.until("the surplus to be refused", func() bool { return len(w.failures(pods...)) > 0 })
	for range 4 {
		w.attempted()
	}
}

// A pod beyond the minimum preempts nothing and reserves nothing. It is placed when a node becomes free.
func TestSurplusHoldsNothing(t *testing.T) {
	for name, priority := range map[string]int32{"beside a lower gang": 0, "beside an equal gang": 5} {
		t.Run(name, func(t *testing.T) {
			w := surplusWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), node("c", 2))
			w.minimum(5)
			w.create(prior(priority, memberPod("low", 0, 1, 2))...)
			w.until("the other gang to be placed", w.boundTo(map[string]string{"low-0": "c"}))
			w.create(prior(5, created(memberPod("g", 2, 2, 2), ago(1)))...)
			w.refused("g-2")
			if left := w.whoLeft(); len(left) > 0 || w.plugin.reservations.Any() || w.searches() > 0 {
				t.Errorf("%v left, room held: %v, %d searches", left, w.plugin.reservations.Any(), w.searches())
			}
			w.remove("low-0")
			w.until("the surplus to be placed", w.boundTo(map[string]string{"g-2": "c"}))
		})
	}
}

// Room is reserved for what the gang needs, not for its surplus.
func TestTheMinimumAloneIsReserved(t *testing.T) {
	w := surplusWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2),
		on(pod("busy-a", 2), "a"), on(pod("busy-b", 2), "b"), on(pod("busy-c", 2), "c"), on(pod("busy-d", 2), "d"))
	w.createAll(gangOf("g", 4, 2))
	w.until("room to be reserved", w.says("g", "is reserved for it"))
	if h := w.placement("g").Held; h == nil || len(h.Nodes) != 2 {
		t.Errorf("held: %+v", h)
	}
}

// The surplus of an old gang comes after a gang that began to wait before it did.
func TestSurplusWaitsSinceItsPodsExist(t *testing.T) {
	w := surplusWorld(t, extras{}, node("a", 2), node("b", 2))
	w.minimum(0)
	w.create(prior(0, created(memberPod("waits", 0, 1, 2), ago(30)))...)
	w.until("the gang to be refused", func() bool { return len(w.failures("waits-0")) > 0 })
	w.create(prior(0, created(memberPod("g", 2, 2, 2), ago(1)))...)
	w.refused("g-2")
	w.create(node("c", 2))
	w.until("the gang that waited to be placed", w.boundTo(map[string]string{"waits-0": "c"}))
	w.create(prior(0, created(memberPod("g", 3, 2, 2), ago(60)))...) // from before the next gang
	w.create(prior(0, created(memberPod("late", 0, 1, 2), ago(20)))...)
	w.until("the late gang to be refused", func() bool { return len(w.failures("late-0")) > 0 })
	w.create(node("d", 2))
	w.until("the surplus that waited to be placed", w.boundTo(map[string]string{"g-3": "d"}))
	if at := w.where("g-2") + w.where("late-0"); at != "" {
		t.Errorf("a later pod was placed: %s", at)
	}
}

// Nodes that are reserved for another gang are not free for surplus, whatever its priority; they are for what the gang needs.
func TestSurplusKeepsOutOfReservedRoom(t *testing.T) {
	w := surplusWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2),
		prior(5, on(pod("busy", 2), "d"))[0])
	w.minimum(9)
	w.create(prior(5, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved", w.says("big", "is reserved for it"))
	w.create(prior(9, created(memberPod("g", 2, 2, 2), ago(1)))...)
	w.refused("g-2")
	if at := w.where("g-2"); at != "" {
		t.Fatalf("surplus took the reserved node %s", at)
	}
	w.create(on(pod("thief", 2), "b"))
	w.remove("g-1")
	w.until("it to be placed there once the gang needs it", w.boundTo(map[string]string{"g-2": "c"}))
}

// A gang that lost a pod below its minimum has room reserved at once, for that pod alone.
func TestALossBelowTheMinimumIsReservedFor(t *testing.T) {
	w := surplusWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), on(pod("busy", 2), "c"))
	w.plugin.args.ReservationAfter.Duration = time.Hour
	w.minimum(0)
	w.create(on(pod("thief", 2), "b"))
	w.remove("g-1")
	w.create(prior(0, created(memberPod("g", 2, 2, 2), ago(5)), created(memberPod("g", 3, 2, 2), ago(5)))...)
	w.until("room to be reserved", w.says("g", "is reserved for it"))
	if h := w.placement("g").Held; h == nil || len(h.Nodes) != 1 {
		t.Errorf("held: %+v", h)
	}
	for range 4 {
		w.attempted()
	}
	w.remove("busy", "thief")
	w.until("both to be placed", w.boundTo(map[string]string{"g-2": "*", "g-3": "*"}))
	w.until("the room to be released", func() bool { return !w.plugin.reservations.Any() })
}

// A surplus pod that fits nowhere holds up no younger one of another kind, whatever comes first: pods or nodes. Each has its own turn.
func TestSurplusThatFitsNowhereHoldsUpNoOther(t *testing.T) {
	large := func(slot, age int) *v1.Pod { return created(memberPod("g", slot, 2, 9), ago(age)) }
	small := func(slot, age int) *v1.Pod { return created(memberPod("g", slot, 2, 2), ago(age)) }
	for name, comes := range map[string]func(*world){
		"the pod last": func(w *world) {
			w.create(node("c", 2), large(2, 60))
			w.refused("g-2")
			w.create(small(3, 10))
		},
		"the node last": func(w *world) {
			w.create(large(2, 60), small(3, 10))
			w.refused("g-2")
			w.create(node("c", 2))
		},
		"of one age": func(w *world) {
			w.create(node("c", 2), large(2, 60), small(3, 60))
		},
		"before a younger gang": func(w *world) {
			w.create(large(2, 60), small(3, 10))
			w.refused("g-2")
			w.create(created(memberPod("late", 0, 1, 2), ago(5)))
			w.until("the late gang to be refused", func() bool { return len(w.failures("late-0")) > 0 })
			w.create(node("c", 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := surplusWorld(t, extras{}, node("a", 2), node("b", 2))
			w.minimum(0)
			comes(w)
			w.until("the pod that fits to be placed", w.boundTo(map[string]string{"g-3": "c"}))
			w.attempted()
			if at := w.where("g-2") + w.where("late-0"); at != "" && at != "gone" {
				t.Errorf("another pod was placed: %s", at)
			}
		})
	}
	t.Run("after an older gang", func(t *testing.T) {
		w := surplusWorld(t, extras{}, node("a", 2), node("b", 2))
		w.minimum(0)
		w.create(large(2, 60), small(3, 10), created(memberPod("waits", 0, 1, 2), ago(30)))
		w.until("all to be refused", func() bool { return len(w.failures("waits-0")) > 0 && len(w.failures("g-2")) > 0 })
		w.create(node("c", 2))
		w.until("the gang to be placed", w.boundTo(map[string]string{"waits-0": "c"}))
		w.create(node("d", 2))
		w.until("the pod that fits to be placed", w.boundTo(map[string]string{"g-3": "d"}))
	})
}
