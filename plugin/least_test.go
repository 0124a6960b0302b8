package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// leastWorld is a world in which gangs of four pods have a minimum of least, as gangs of other APIs may.
func leastWorld(t *testing.T, least int, objects ...runtime.Object) *world {
	return newWorld(t, extras{terms: func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error) {
		return gangcache.Terms{Size: 4, Min: least}, nil
	}}, objects...)
}

// At least the minimum is placed, and as many pods as fit. The other pods join later, possibly one by one, and no placed pod is rolled back
// for them.
func TestAGangThatCanDoWithFewer(t *testing.T) {
	w := leastWorld(t, 2, node("a", 2))
	for slot := range 4 {
		w.create(memberPod("g", slot, 4, 2))
	}
	w.until("one place to be too little", w.says("g", "4 pods wanted (2 at least), 1 fits: 1 node"))
	w.attempted()
	if at := w.where("g-0"); at != "" {
		t.Fatalf("g-0 is on %s without another", at)
	}
	w.create(node("b", 2), node("c", 2))
	w.until("three to be placed", w.boundTo(map[string]string{"g-0": "*", "g-1": "*", "g-2": "*"}))
	w.until("the gang to be placed, though one waits", func() bool { p := w.placement("g"); return p.Placed && len(p.Nodes) == 3 })
	w.attempted()
	if at := w.where("g-3"); at != "" {
		t.Fatalf("g-3 is on %s, where there is no room", at)
	}
	w.create(node("d", 2))
	w.until("the last to join", w.boundTo(map[string]string{"g-3": "d"}))
	w.until("the gang to have all four", func() bool { return len(w.placement("g").Nodes) == 4 })
	if d := w.deleted(); len(d) != 0 {
		t.Errorf("taken back: %v", d)
	}
}

// A gang with its minimum is not disturbed by the loss of a pod beyond the minimum. After the loss of a required pod it waits for that pod
// alone.
func TestLossesOfAGangThatCanDoWithFewer(t *testing.T) {
	w := leastWorld(t, 3, node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	for slot := range 4 {
		w.create(memberPod("g", slot, 4, 2))
	}
	w.until("all to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c", "g-3": "d"}))
	w.remove("g-3", "g-2")
	w.knows(2)
	w.taint("c", v1alpha1.TaintUnhealthy, "test")
	w.until("the scheduler to see the taint", func() bool {
		c := w.sched.Cache.Dump().Nodes["c"]
		return c != nil && len(c.Node().Spec.Taints) > 0
	})
	p := memberPod("g", 2, 4, 2)
	p.Name += "-again"
	q := memberPod("g", 3, 4, 2)
	q.Name += "-again"
	w.create(p, q)
	w.until("the one that there is room for to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2-again": "d"}))
	w.attempted()
	if at := w.where("g-3-again"); at != "" {
		t.Errorf("g-3-again is on %s", at)
	}
	if d := w.deleted(); len(d) != 2 {
		t.Errorf("deleted %v: more than the test did", d)
	}
}

// groupPod returns a pod of another API's group.
func groupPod(name string) *v1.Pod {
	p := pod(name, 2)
	p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "en"}
	return p
}

// A pod of another API's group that succeeded counts as a member, also for a scheduler that started later. A pod that waits for others of
// its group has a condition with the reason.
func TestAMemberOfAGroupThatEndedWellCounts(t *testing.T) {
	ended := on(groupPod("en-0"), "a")
	ended.Status.Phase = v1.PodSucceeded
	for name, c := range map[string]struct {
		objects []runtime.Object
		placed  bool
	}{
		"ended well": {[]runtime.Object{ended}, true},
		"not there":  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extras{terms: func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error) {
				return gangcache.Terms{Size: 3, Min: 3}, nil
			}}, append(c.objects, node("a", 2), node("b", 2), node("c", 2), on(groupPod("en-1"), "b"), groupPod("en-2"))...)
			if c.placed {
				w.until("it to be placed", w.boundTo(map[string]string{"en-2": "*"}))
				return
			}
			w.until("it to be said why it waits", w.waits("en-2", "2 of 3 pods exist"))
		})
	}
}
