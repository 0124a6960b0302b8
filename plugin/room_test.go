package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// evicting makes the world evict pods at once, as the API server does. evicting refuses to evict the pod named refuse; "": none.
func evicting(refuse string) func(*world) {
	return func(w *world) {
		w.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			create, ok := a.(clienttesting.CreateAction)
			if !ok || create.GetSubresource() != "eviction" {
				return false, nil, nil
			}
			e, ok := create.GetObject().(*policyv1.Eviction)
			if !ok {
				return true, nil, fmt.Errorf("unexpected %T", create.GetObject())
			}
			w.mu.Lock()
			w.evicted = append(w.evicted, e.Name)
			w.mu.Unlock()
			return true, nil, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
		})
	}
}

// prior gives pods a priority.
func prior(priority int32, pods ...*v1.Pod) []runtime.Object {
	var all []runtime.Object
	for _, p := range pods {
		p.Spec.Priority = &priority
		all = append(all, p)
	}
	return all
}

func (w *world) whoLeft() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.evicted)
	slices.Sort(all)
	return all
}

// told reports whether a pod has an event with a text.
func (w *world) told(pod, text string) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events[pod], func(e string) bool { return strings.Contains(e, text) })
	}
}

// Rules WholeUnits and OnlyLower of docs/designs/priority.md: the gang of lower priority is preempted whole, and the gang of the same
// priority stays.
func TestAWholeGangMakesRoom(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), node("c", 2), node("d", 2), node("e", 2))
	w.create(prior(0, gangOf("low", 2, 2)...)...)
	w.until("the low gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b"}))
	w.create(prior(5, gangOf("same", 2, 2)...)...)
	w.until("the other to be placed", w.boundTo(map[string]string{"same-0": "c", "same-1": "d"}))
	w.create(prior(5, gangOf("high", 2, 2)...)...)
	w.until("it to be told why", func() bool {
		return w.told("low-0", "makes room for gang ns/high of higher priority, with all of its gang")() || w.told("low-1", "makes room for gang ns/high of higher priority")()
	})
	w.until("the gang to be placed where the low one was", w.boundTo(map[string]string{"high-0": "*", "high-1": "*"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "low-0 low-1" {
		t.Errorf("%v left", left)
	}
	if w.where("same-0") != "c" || w.where("same-1") != "d" {
		t.Error("a gang of the same priority was touched")
	}
	w.until("the room to be held no more", func() bool { return !w.plugin.reservations.Any() })
}

// Rule NobodyForNothing of docs/designs/priority.md: no pod is preempted if the gang would not fit afterwards, or if the gang forbids
// preemption.
func TestNobodyLeavesForNothing(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2))
	w.create(prior(0, gangOf("low", 2, 2)...)...)
	w.until("the low gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b"}))
	w.create(prior(5, gangOf("high", 3, 2)...)...)
	w.until("the refusal", w.says("high", "3 pods wanted"))
	modest := gangOf("modest", 2, 2)
	never := v1.PreemptNever
	for _, p := range modest {
		p.Spec.PreemptionPolicy = &never
	}
	w.create(prior(9, modest...)...)
	w.until("the refusal", w.says("modest", "2 pods wanted"))
	for range 5 {
		w.attempted()
	}
	if left := w.whoLeft(); len(left) > 0 {
		t.Errorf("%v left", left)
	}
}

// Rule BudgetsKept of docs/designs/priority.md: a unit whose disruption budget allows no eviction stays, and the unit with more lost work
// is preempted.
func TestDisruptionBudgetsHold(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "kept"}}}}
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), node("c", 2), node("d", 2), budget)
	w.create(prior(0, gangOf("kept", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"kept-0": "a", "kept-1": "b"}))
	w.create(prior(3, gangOf("dear", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"dear-0": "c", "dear-1": "d"}))
	w.create(prior(5, gangOf("high", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"high-0": "c", "high-1": "d"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "dear-0 dear-1" {
		t.Errorf("%v left", left)
	}
}

// Rule HeldIsHeld of docs/designs/priority.md: while victims terminate, gangs and pods of no higher priority cannot use the freed room.
func TestFreedRoomIsHeld(t *testing.T) {
	var slow *world
	w := newWorld(t, extras{before: func(w *world) {
		slow = w
		w.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			create, ok := a.(clienttesting.CreateAction)
			if !ok || create.GetSubresource() != "eviction" {
				return false, nil, nil
			}
			e, _ := create.GetObject().(*policyv1.Eviction)
			slow.mu.Lock()
			slow.evicted = append(slow.evicted, e.Name) // it takes its time
			slow.mu.Unlock()
			return true, nil, nil
		})
	}}, node("a", 2), node("b", 2))
	w.create(prior(0, gangOf("low", 2, 2)...)...)
	w.until("the low gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b"}))
	w.create(prior(5, gangOf("high", 2, 2)...)...)
	w.until("both to be told to leave", func() bool { return len(w.whoLeft()) == 2 })
	w.until("it to be said", w.says("high", "is nominated for it until"))
	if m := w.placement("high").Message; !strings.Contains(m, "preempting gang ns/low (2 pods)") {
		t.Error(m)
	}
	if h := w.placement("high").Held; h == nil || h.Kind != v1alpha1.HeldNomination || strings.Join(h.Nodes, " ") != "a b" ||
		strings.Join(h.Victims, " ") != "gang ns/low" ||
		h.VictimPods != 2 ||
		h.Until == nil {
		t.Errorf("held: %+v", h)
	}
	w.remove("low-0") // the first victim is gone, the other not yet
	w.create(prior(4, pod("thief", 2))...)
	w.create(prior(5, gangOf("rival", 1, 2)...)...)
	w.until("the refusal", w.says("rival", "1 pod wanted, 0 fit"))
	w.attempted()
	if at := w.where("thief") + w.where("rival-0"); at != "" {
		t.Fatalf("held room was taken: %s", at)
	}
	w.remove("low-1")
	w.until("the gang to be placed", w.boundTo(map[string]string{"high-0": "a", "high-1": "b"}))
	if n := len(w.whoLeft()); n != 2 {
		t.Errorf("%d evictions", n)
	}
}

// Room is reserved for the first gang in order that was refused for a long time. Only pods that end in time may use the room.
func TestAReservationIsFilledInOnly(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	w.plugin.args.ReservationAfter.Duration = 0
	now := metav1.Now()
	for i, at := range []string{"a", "b"} {
		p := on(pod("busy-"+at, 2), at)
		seconds := int64(3600 * (i + 1))
		p.Spec.ActiveDeadlineSeconds, p.Status.StartTime = &seconds, &now
		w.create(p)
	}
	w.create(prior(0, gangOf("big", 3, 2)...)...)
	w.until("room to be reserved", w.says("big", "is reserved for it, expected to be free at"))
	if h := w.placement("big").Held; h == nil || h.Kind != v1alpha1.HeldReservation || strings.Join(h.Nodes, " ") != "a b c" ||
		h.ExpectedAt == nil ||
		h.ExpectedAt.Sub(now.Time).Round(time.Minute) != 2*time.Hour {
		t.Errorf("held: %+v", h)
	}
	long, short := pod("long", 2), pod("short", 2)
	hour := int64(3600)
	short.Spec.ActiveDeadlineSeconds = &hour
	w.create(long)
	w.attempted()
	if w.where("long") != "" {
		t.Fatal("a pod that says nothing went into reserved room")
	}
	w.create(short)
	w.until("the one that ends in time to be placed", w.boundTo(map[string]string{"short": "c"}))
	w.remove("busy-a", "busy-b", "short")
	w.until("the gang to be placed", w.boundTo(map[string]string{"big-0": "*", "big-1": "*", "big-2": "*"}))
	if w.where("long") != "" {
		t.Error("the pod took room from the gang")
	}
}

// A unit that exceeds its declared end is preempted for the gang whose reservation relied on that end. Units without a declared end, with
// time left, or on other nodes stay.
func TestAnOverdueJobMakesRoom(t *testing.T) {
	running := func(name, at, runTime string, since time.Duration) *v1.Pod {
		p := on(memberPod(name, 0, 1, 2), at)
		if runTime != "" {
			p.Annotations[v1alpha1.AnnotationRunTime] = runTime
		}
		p.Status.Phase, p.Status.StartTime = v1.PodRunning, &metav1.Time{Time: time.Now().Add(-since)}
		return p
	}
	racked := func(name, rack string) *v1.Node {
		n := node(name, 2)
		n.Labels[v1.LabelTopologyZone] = rack
		return n
	}
	wait := func(busy ...runtime.Object) *world {
		w := newWorld(t, extras{before: evicting("")}, append(busy, racked("a", "x"), racked("b", "x"), racked("c", "x"), racked("d", "y"))...)
		w.plugin.args.ReservationAfter.Duration = 0
		w.attempted()
		big := gangOf("big", 3, 2)
		for _, p := range big {
			p.Annotations[v1alpha1.AnnotationTopologyRequired] = "zone"
		}
		w.create(prior(0, big...)...)
		return w
	}
	w := wait(running("late", "a", "1h", 2*time.Hour), running("elsewhere", "d", "1h", 2*time.Hour))
	w.until("the gang to be placed", w.boundTo(map[string]string{"big-0": "a", "big-1": "b", "big-2": "c"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "late-0" {
		t.Errorf("%v left", left)
	}
	w.until("it to be told why", w.told("late-0", "makes room for gang ns/big, whose reserved room it occupies beyond its declared run time"))
	w = wait(running("quiet", "a", "", 2*time.Hour), running("early", "b", "3h", 2*time.Hour))
	w.until("room to be reserved", w.says("big", "is reserved for it"))
	w.until("room to be looked for again", func() bool { return w.searches() >= 3 })
	if left := w.whoLeft(); len(left) > 0 {
		t.Errorf("%v left", left)
	}
}

// Room for a lost member is reserved at once.
func TestALostMembersRoomIsReservedAtOnce(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(prior(0, gangOf("g", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("it to be said", func() bool { return w.placement("g").Placed })
	w.remove("g-1")
	w.create(on(pod("thief", 2), "b"))
	w.create(prior(0, memberPod("g", 1, 2, 2))...)
	w.until("room to be reserved", w.says("g", "reserved for it"))
	w.create(prior(0, gangOf("other", 1, 2)...)...)
	w.until("the refusal", w.says("other", "1 pod wanted"))
	w.remove("thief")
	w.until("the member to be back", w.boundTo(map[string]string{"g-1": "b"}))
	if w.where("other-0") != "" {
		t.Error("another gang was first")
	}
}
