package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func (w *world) reserved(name string, nodes ...string) func() bool {
	return func() bool {
		h, ok := w.plugin.holds.get(key(name))
		return ok && h.Reserved && slices.Equal(slices.Sorted(slices.Values(h.nodes())), nodes)
	}
}

// A reservation of which a node goes bad is made elsewhere, and who was kept out of the first one is tried again.
func TestAReservationMovesWithItsNodes(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 4), on(pod("quiet-a", 1), "a"), on(pod("quiet-b", 1), "b"), on(pod("quiet-c", 4), "c"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, ranked("big", 2, 2)...)...)
	w.until("the rooms with least in the way to be reserved", w.reserved("big", "a", "b"))
	w.create(pod("small", 1))
	w.attempted()
	if at := w.where("small"); at != "" {
		t.Fatalf("a pod went to %s, which is reserved", at)
	}
	w.taint("a", "broken", "")
	w.until("another room to be reserved", func() bool {
		h, ok := w.plugin.holds.get(key("big"))
		return ok && h.Reserved && !slices.Contains(h.nodes(), "a")
	})
}

// Room in which filters refuse the gang even with everybody gone is reserved for nobody: others go there.
func TestNothingIsReservedInVain(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	w.plugin.args.ReservationAfter.Duration = 0
	apart := ranked("apart", 3, 2)
	for _, p := range apart {
		p.Labels["of"] = "apart"
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"of": "apart"}}}}}}
	}
	w.create(prior(0, apart...)...)
	w.until("room to be looked for", func() bool { return count(t, w.plugin.measures.searched) >= 1 })
	w.create(prior(0, ranked("others", 2, 8)...)...)
	w.until("the others to be placed", w.boundTo(map[string]string{"others-0": "*", "others-1": "*"}))
	if _, held := w.plugin.holds.get(key("apart")); held {
		t.Error("room is held for a gang that never fits there")
	}
}

// NobodyStarves: a gang that fits no cluster does not keep the next one from having room reserved.
func TestWhatNeverFitsStandsBack(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("quiet", 2), "a"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, ranked("giant", 9, 2)...)...)
	w.until("the giant to be refused", w.says("giant", "9 pods wanted"))
	w.create(prior(0, ranked("big", 2, 2)...)...)
	w.until("room to be reserved for the next one", w.reserved("big", "a", "b"))
}

// OnlyLower: whoever is of higher priority stays beyond its declared time, for it would take the room back.
func TestAnOverdueJobOfHigherPriorityStays(t *testing.T) {
	late := on(memberPod("late", 0, 1, 2), "a")
	late.Annotations[v1alpha1.AnnotationRunTime] = "1h"
	late.Status.Phase, late.Status.StartTime = v1.PodRunning, &metav1.Time{Time: time.Now().Add(-2 * time.Hour)}
	ten := int32(10)
	late.Spec.Priority = &ten
	w := newWorld(t, extras{before: evicting("")}, late, node("a", 2), node("b", 2))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, ranked("big", 2, 2)...)...)
	w.until("room to be reserved", w.reserved("big", "a", "b"))
	w.until("room to be looked for again", func() bool { return count(t, w.plugin.measures.searched) >= 3 })
	if left := w.whoLeft(); len(left) > 0 {
		t.Errorf("%s left", strings.Join(left, " "))
	}
}

// All searches together take no more than a part of the time, however many wait.
func TestSearchesTakeTurns(t *testing.T) {
	p := &Plugin{tried: map[types.NamespacedName]attempt{}, ledger: newLedger(), measures: newMeasures()}
	now := time.Now()
	woken := make(chan string, 2)
	if !p.turnToSearch(key("one"), now, nil) {
		t.Fatal("the first is refused its turn")
	}
	p.searched(key("one"), now.Add(-10*time.Second), true, func() {})
	if p.turnToSearch(key("other"), time.Now(), func() { woken <- "other" }) {
		t.Error("another one searches right after a search of ten seconds")
	}
	if next := p.tried[key("other")].next; next.Before(now.Add(99 * time.Second)) {
		t.Errorf("its turn is %v after", next.Sub(now))
	}
	if !p.turnToSearch(key("other"), now.Add(200*time.Second), nil) {
		t.Error("its turn never comes")
	}
	p.nextSearch = time.Now().Add(time.Millisecond)
	if p.turnToSearch(key("third"), time.Now(), func() { woken <- "third" }) {
		t.Error("it does not wait")
	}
	select {
	case <-woken:
	case <-time.After(patience):
		t.Error("it is not called when its turn comes")
	}
}

// A pod that waits for its gang and is released from it is scheduled at once, though the gate is asked at no event.
func TestAReleasedPodIsScheduled(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	w.create(memberPod("g", 0, 2, 2))
	w.attempted()
	w.change("g-0", func(p *v1.Pod) { p.Labels, p.Annotations, p.ResourceVersion = nil, nil, "2" })
	w.until("the pod to be placed", w.boundTo(map[string]string{"g-0": "a"}))
}
