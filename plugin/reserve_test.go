package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func (w *world) reserved(name string, nodes ...string) func() bool {
	return func() bool {
		h, ok := w.plugin.reservations.Get(key(name))
		return ok && h.Reserved && slices.Equal(slices.Sorted(slices.Values(h.Status().Nodes)), nodes)
	}
}

// If a node of a reservation becomes unhealthy, room is reserved elsewhere, and pods that the first reservation excluded are tried again.
func TestAReservationMovesWithItsNodes(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 4), on(pod("quiet-a", 1), "a"), on(pod("quiet-b", 1), "b"), on(pod("quiet-c", 4), "c"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("the rooms with least in the way to be reserved", w.reserved("big", "a", "b"))
	w.create(pod("small", 1))
	w.attempted()
	if at := w.where("small"); at != "" {
		t.Fatalf("a pod went to %s, which is reserved", at)
	}
	w.taint("a", "broken", "")
	w.until("another room to be reserved", func() bool {
		h, ok := w.plugin.reservations.Get(key("big"))
		return ok && h.Reserved && !slices.Contains(h.Status().Nodes, "a")
	})
}

// No room is reserved in which filters would refuse the gang even without any other pod. Other pods use that room.
func TestNothingIsReservedInVain(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	w.plugin.args.ReservationAfter.Duration = 0
	apart := gangOf("apart", 3, 2)
	for _, p := range apart {
		p.Labels["of"] = "apart"
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"of": "apart"}}}}}}
	}
	w.create(prior(0, apart...)...)
	w.until("room to be looked for", func() bool { return w.searches() >= 1 })
	w.create(prior(0, gangOf("others", 2, 8)...)...)
	w.until("the others to be placed", w.boundTo(map[string]string{"others-0": "*", "others-1": "*"}))
	if _, held := w.plugin.reservations.Get(key("apart")); held {
		t.Error("room is held for a gang that never fits there")
	}
}

// Rule NobodyStarves of docs/designs/priority.md: a gang that could never fit does not keep the next gang from a reservation.
func TestWhatNeverFitsStandsBack(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("quiet", 2), "a"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("giant", 9, 2)...)...)
	w.until("the giant to be refused", w.says("giant", "9 pods wanted"))
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved for the next one", w.reserved("big", "a", "b"))
}

// A reservation ends if its gang lost a member that is not re-created. A reservation for a complete gang stays.
func TestAReservationOfAGangThatLacksMembersEnds(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("quiet", 2), "a"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved", w.reserved("big", "a", "b"))
	logger, now, timeout := klog.Background(), time.Now(), w.plugin.args.InitialPlacementTimeout.Duration
	w.plugin.preemption.Lapse(logger, now)
	w.plugin.preemption.Lapse(logger, now.Add(2*timeout))
	if !w.reserved("big", "a", "b")() {
		t.Fatal("the reservation of a gang that waits for room ended")
	}
	w.remove("big-1")
	w.until("it to be known", func() bool { return !w.plugin.gangs.Schedulable(key("big")) })
	w.plugin.preemption.Lapse(logger, now)
	w.plugin.preemption.Lapse(logger, now.Add(timeout/2))
	if !w.reserved("big", "a", "b")() {
		t.Fatal("the reservation ended at once")
	}
	w.create(pod("late", 2))
	w.attempted()
	if w.where("late") != "" {
		t.Fatal("a pod went into reserved room")
	}
	w.plugin.preemption.Lapse(logger, now.Add(2*timeout))
	w.until("the pod to be placed", w.boundTo(map[string]string{"late": "b"}))
}

// Rule OnlyLower of docs/designs/priority.md: an overdue unit of higher priority is not preempted, because it would preempt the gang in
// turn.
func TestAnOverdueJobOfHigherPriorityStays(t *testing.T) {
	late := on(memberPod("late", 0, 1, 2), "a")
	late.Annotations[v1alpha1.AnnotationRunTime] = "1h"
	late.Status.Phase, late.Status.StartTime = v1.PodRunning, &metav1.Time{Time: time.Now().Add(-2 * time.Hour)}
	ten := int32(10)
	late.Spec.Priority = &ten
	w := newWorld(t, extras{before: evicting("")}, late, node("a", 2), node("b", 2))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved", w.reserved("big", "a", "b"))
	w.until("room to be looked for again", func() bool { return w.searches() >= 3 })
	if left := w.whoLeft(); len(left) > 0 {
		t.Errorf("%s left", strings.Join(left, " "))
	}
}

// A pod that waits for its gang and is released from the gang is scheduled at once, although its gate registered no event.
func TestAReleasedPodIsScheduled(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	w.create(memberPod("g", 0, 2, 2))
	w.attempted()
	w.change("g-0", func(p *v1.Pod) { p.Labels, p.Annotations, p.ResourceVersion = nil, nil, "2" })
	w.until("the pod to be placed", w.boundTo(map[string]string{"g-0": "a"}))
}
