package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func (w *world) reserved(name string, nodes ...string) func() bool {
	return func() bool {
		h, ok := w.plugin.holds.get(key(name))
		return ok && h.Reserved && slices.Equal(slices.Sorted(slices.Values(h.nodes())), nodes)
	}
}

// A reservation of which a node goes bad is made claims.Elsewhere, and who was kept out of the first one is tried again.
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
		h, ok := w.plugin.holds.get(key("big"))
		return ok && h.Reserved && !slices.Contains(h.nodes(), "a")
	})
}

// Room in which filters refuse the gang even with everybody gone is reserved for nobody: others go there.
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
	w.until("room to be looked for", func() bool { return count(t, w.plugin.measures.searched) >= 1 })
	w.create(prior(0, gangOf("others", 2, 8)...)...)
	w.until("the others to be placed", w.boundTo(map[string]string{"others-0": "*", "others-1": "*"}))
	if _, held := w.plugin.holds.get(key("apart")); held {
		t.Error("room is held for a gang that never fits there")
	}
}

// NobodyStarves: a gang that fits no cluster does not keep the next one from having room reserved.
func TestWhatNeverFitsStandsBack(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("quiet", 2), "a"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("giant", 9, 2)...)...)
	w.until("the giant to be refused", w.says("giant", "9 pods wanted"))
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved for the next one", w.reserved("big", "a", "b"))
}

// A reservation for a gang that lost a member which nobody makes again ends; one that has all its members stands.
func TestAReservationOfAGangThatLacksMembersEnds(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("quiet", 2), "a"))
	w.plugin.args.ReservationAfter.Duration = 0
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved", w.reserved("big", "a", "b"))
	logger, now, patience := klog.Background(), time.Now(), w.plugin.args.FormingPatience.Duration
	w.plugin.lapseHolds(logger, now)
	w.plugin.lapseHolds(logger, now.Add(2*patience))
	if !w.reserved("big", "a", "b")() {
		t.Fatal("the reservation of a gang that waits for room ended")
	}
	w.remove("big-1")
	w.until("it to be known", func() bool { return !w.plugin.gangs.Able(key("big")) })
	w.plugin.lapseHolds(logger, now)
	w.plugin.lapseHolds(logger, now.Add(patience/2))
	if !w.reserved("big", "a", "b")() {
		t.Fatal("the reservation ended at once")
	}
	w.create(pod("late", 2))
	w.attempted()
	if w.where("late") != "" {
		t.Fatal("a pod went into reserved room")
	}
	w.plugin.lapseHolds(logger, now.Add(2*patience))
	w.until("the pod to be placed", w.boundTo(map[string]string{"late": "b"}))
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
	w.create(prior(0, gangOf("big", 2, 2)...)...)
	w.until("room to be reserved", w.reserved("big", "a", "b"))
	w.until("room to be looked for again", func() bool { return count(t, w.plugin.measures.searched) >= 3 })
	if left := w.whoLeft(); len(left) > 0 {
		t.Errorf("%s left", strings.Join(left, " "))
	}
}

// All searches together take no more than a part of the time, however many wait.
func TestSearchesTakeTurns(t *testing.T) {
	p := &Plugin{tried: map[types.NamespacedName]attempt{}, gangs: newCache(), measures: newMeasures()}
	now := time.Now()
	woken := make(chan string, 2)
	if !p.turnToSearch(key("one"), now, nil) {
		t.Fatal("the first is refused its turn")
	}
	p.searched(key("one"), now.Add(-10*time.Second), something, func() {})
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

// NobodyStarves: who is first in the queue's order, and looks for room again and again, does not take every turn.
func TestWhoSearchedLetsOthersHaveTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Plugin{tried: map[types.NamespacedName]attempt{}, gangs: newCache(), measures: newMeasures()}
		had := map[string]int{}
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		woken := map[string]bool{}
		var mu sync.Mutex
		for range 60_000 {
			for _, name := range names { // in the queue's order
				again := func() { mu.Lock(); woken[name] = true; mu.Unlock() }
				if p.turnToSearch(key(name), time.Now(), again) {
					had[name]++
					began := time.Now()
					time.Sleep(500 * time.Millisecond)
					p.searched(key(name), began, something, again)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		for _, name := range names {
			if 2*had[name] < had["n00"] || had[name] < 3 || !woken[name] {
				t.Errorf("%s had %d turns, the first %d", name, had[name], had["n00"])
			}
		}
	})
}

// NobodyStarves: who looks for room seldom, because it was in vain for long, and finds that it must be read what gangs have stored,
// goes by what was read for it when it comes back.
func TestWhoSearchesSeldomGoesByWhatWasReadForIt(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2))
	w.create(prior(0, gangOf("low", 2, 2)...)...)
	w.until("the low gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b"}))
	err := w.station.between(w.ctx, w.station.any, func(_ context.Context, p *Plugin) error {
		p.tried[key("high")] = attempt{delay: lookAgainAtMost}
		p.worth.mu.Lock()
		defer p.worth.mu.Unlock()
		p.worth.at = time.Now().Add(-time.Hour)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.create(prior(5, gangOf("high", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"high-0": "*", "high-1": "*"}))
}

// What was read since it was asked for will do, however long ago that was.
func TestWhatGangsHaveStoredIsKnown(t *testing.T) {
	at := time.Now()
	w := &worth{at: at, reading: true}
	for name, c := range map[string]struct {
		after time.Duration
		asked time.Time
		want  bool
	}{
		"read just now":     {worthAge - 1, time.Time{}, true},
		"read too long ago": {worthAge, time.Time{}, false},
		"read since asked":  {time.Minute, at.Add(-1), true},
		"read before asked": {time.Minute, at.Add(1), false},
	} {
		if got := w.known(t.Context(), at.Add(c.after), c.asked); got != c.want {
			t.Errorf("%s: known is %v", name, got)
		}
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
