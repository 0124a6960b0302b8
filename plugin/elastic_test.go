package plugin

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// elastic returns the pods of a gang of Holdfast that goes on with fewer. Each uses a whole node.
func elastic(name string, size, least int) []*v1.Pod {
	var pods []*v1.Pod
	for slot := range size {
		pods = append(pods, elasticPod(memberPod(name, slot, size, 2), least))
	}
	return pods
}

func elasticPod(p *v1.Pod, least int) *v1.Pod {
	return asking(p, v1alpha1.AnnotationGangMin, fmt.Sprint(least))
}

func nodes(names ...string) (all []runtime.Object) {
	for _, name := range names {
		all = append(all, node(name, 2))
	}
	return all
}

// TestTheFirstStartOfAnElasticGang: all pods are placed if they fit, else as many as fit and at least the minimum, once all exist.
func TestTheFirstStartOfAnElasticGang(t *testing.T) {
	for free, on := range map[int]int{4: 4, 3: 3, 2: 2, 1: 0} {
		t.Run(fmt.Sprintf("%d nodes", free), func(t *testing.T) {
			w := newWorld(t, extras{}, nodes([]string{"a", "b", "c", "d"}[:free]...)...)
			pods := elastic("g", 4, 2)
			w.createAll(pods[:3])
			w.attempted()
			if n := w.onNodes("g", 4); n != 0 {
				t.Errorf("%d pods are placed before all exist", n)
			}
			w.create(pods[3])
			if on == 0 {
				w.until("the gang to be refused", w.says("g", "(2 at least), 1 fits"))
			} else {
				w.until("the gang to be placed", func() bool { return w.placement("g").Placed && w.onNodes("g", 4) == on })
			}
			w.attempted()
			if n := w.onNodes("g", 4); n != on || len(w.deleted()) > 0 {
				t.Errorf("%d pods are on nodes, want %d; deleted %v", n, on, w.deleted())
			}
		})
	}
}

// onNodes counts the pods of a gang that have a node.
func (w *world) onNodes(name string, size int) (n int) {
	for slot := range size {
		if at := w.where(fmt.Sprintf("%s-%d", name, slot)); at != "" && at != "gone" {
			n++
		}
	}
	return n
}

// TestALossAboveTheMinimum: the gang has lost none that it needs. The new pod preempts nothing, though another gang of its priority does,
// and holds nothing. It takes a node that becomes free, though another slot has no pod.
func TestALossAboveTheMinimum(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, nodes("a", "b", "c", "d")...)
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(5, elastic("g", 4, 2)...)...)
	w.until("all to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c", "g-3": "d"}))
	w.until("it to be said", func() bool { return w.placement("g").Placed })
	w.create(prior(0, on(pod("low-2", 2), "c"), on(pod("low-3", 2), "d"))...)
	w.remove("g-2", "g-3")
	w.create(prior(5, memberPod("preempts", 0, 1, 2))...)
	w.until("the other gang to be placed", w.boundTo(map[string]string{"preempts-0": "*"}))
	w.create(prior(5, elasticPod(again("g", 2, 4, 2), 2))...)
	w.refused("g-2-again")
	if left := w.whoLeft(); len(left) != 1 || w.plugin.reservations.Any() {
		t.Errorf("%v left, room held: %v", left, w.plugin.reservations.Any())
	}
	w.remove("preempts-0")
	w.until("the new pod to be placed", w.boundTo(map[string]string{"g-2-again": "*"}))
}

// TestALossBelowTheMinimum: room is reserved at once, as for a gang that needs all of its pods, and only for what it needs.
func TestALossBelowTheMinimum(t *testing.T) {
	w := newWorld(t, extras{}, nodes("a", "b", "c")...)
	w.plugin.args.ReservationAfter.Duration = time.Hour
	w.createAll(elastic("g", 3, 2))
	w.until("all to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c"}))
	w.until("it to be said", func() bool { return w.placement("g").Placed })
	w.create(on(pod("thief-b", 2), "b"), on(pod("thief-c", 2), "c"))
	w.remove("g-1", "g-2")
	w.create(elasticPod(again("g", 1, 3, 2), 2), elasticPod(again("g", 2, 3, 2), 2))
	w.until("room to be reserved", w.says("g", "is reserved for it"))
	if h := w.placement("g").Held; h == nil || len(h.Nodes) != 1 {
		t.Errorf("held: %+v", h)
	}
	w.remove("thief-b", "thief-c")
	w.until("both to be placed", w.boundTo(map[string]string{"g-1-again": "*", "g-2-again": "*"}))
}

// inBlocks returns the pods of a gang that goes on with whole blocks of two slots, the second one of them alone.
func inBlocks(pods ...*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		asking(p, v1alpha1.AnnotationGangUnit, "2")
	}
	return pods
}

// TestABlockTakesNodesTogether: surplus takes nodes for a whole block or none, and holds and preempts nothing.
func TestABlockTakesNodesTogether(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, nodes("a", "b", "c", "d")...)
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(on(pod("busy-d", 2), "d"))
	w.create(prior(5, inBlocks(elastic("g", 4, 2)...)...)...)
	w.until("one block to be placed", func() bool { return w.placement("g").Placed && w.onNodes("g", 4) == 2 })
	w.refused("g-2", "g-3")
	if w.where("g-0") == "" || w.where("g-1") == "" || w.onNodes("g", 4) != 2 {
		t.Errorf("%d pods have nodes", w.onNodes("g", 4))
	}
	if left := w.whoLeft(); len(left) > 0 || w.plugin.reservations.Any() {
		t.Errorf("%v left, room held: %v", left, w.plugin.reservations.Any())
	}
	w.remove("busy-d")
	w.until("the other block to be placed", w.boundTo(map[string]string{"g-2": "*", "g-3": "*"}))
}

// TestTheMinimumIsOfWholeBlocks: two pods of different blocks are no minimum: room is reserved for a pod that makes a block whole.
func TestTheMinimumIsOfWholeBlocks(t *testing.T) {
	w := newWorld(t, extras{}, nodes("a", "b", "c", "d")...)
	w.plugin.args.ReservationAfter.Duration = time.Hour
	w.createAll(inBlocks(elastic("g", 4, 2)...))
	w.until("all to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c", "g-3": "d"}))
	w.until("it to be said", func() bool { return w.placement("g").Placed })
	w.create(on(pod("thief-b", 2), "b"), on(pod("thief-c", 2), "c"))
	w.remove("g-1", "g-2")
	w.createAll(inBlocks(elasticPod(again("g", 1, 4, 2), 2), elasticPod(again("g", 2, 4, 2), 2)))
	w.until("room to be reserved", w.says("g", "is reserved for it"))
	if h := w.placement("g").Held; h == nil || len(h.Nodes) != 1 {
		t.Errorf("held: %+v", h)
	}
	w.remove("thief-b")
	w.until("one to be placed", w.boundTo(map[string]string{"g-1-again": "b"}))
	w.remove("thief-c")
	w.until("both to be placed", w.boundTo(map[string]string{"g-2-again": "c"}))
}
