package plugin

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The second chapter of package story: a blocker holds two of three nodes, then it ends.
func TestBlockerHoldsTwoOfThreeNodes(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), on(pod("blocker-a", 2), "a"), on(pod("blocker-b", 2), "b"))
	w.create(memberPod("g", 0, 2, 2))
	w.until("one of two to be told", w.says("g", "1 of 2 pods exist"))
	if got := w.placement("g").Reason; got != v1alpha1.ReasonWaitingForMembers {
		t.Errorf("reason %s", got)
	}
	w.create(memberPod("g", 1, 2, 2))
	const why = "2 pods wanted, 1 fits: 3 nodes, 2 without free nvidia.com/gpu (2 requested)"
	w.until("the reason with counts", w.says("g", why))
	for range 5 {
		w.attempted()
	}
	if a, b := w.where("g-0"), w.where("g-1"); a != "" || b != "" {
		t.Fatalf("half placed: %q %q", a, b)
	}
	p := w.placement("g")
	if p.Placed || p.Reason != v1alpha1.ReasonInsufficientNodes || p.Fits != 1 || p.Wanted != 2 || p.Excluded["insufficient "+gpu] != 2 ||
		p.ObservedAt.IsZero() {
		t.Errorf("status %+v", p)
	}
	w.until("the event", func() bool { return len(w.failures("g-0", "g-1")) > 0 })
	if all := w.failures("g-0", "g-1"); len(all) != 1 || !strings.Contains(all[0], "g-0 ") || !strings.Contains(all[0], why) {
		t.Errorf("one event on the leader was expected: %q", all)
	}
	w.until("the gated sibling's condition", w.marked("g-1", v1.PodReasonUnschedulable, why))
	w.mu.Lock()
	n := w.conditions["g-1"]
	w.mu.Unlock()
	if n != 1 {
		t.Errorf("the gated sibling's status was written %d times", n)
	}

	w.remove("blocker-b")
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "b", "g-1": "c"}))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	if p := w.placement("g"); p.Reason != v1alpha1.ReasonPlaced || strings.Join(p.Nodes, " ") != "b c" || p.Excluded != nil {
		t.Errorf("status %+v", p)
	}
}

func TestPodsOfOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	w.create(pod("plain", 2))
	w.until("the plain pod to be bound", w.boundTo(map[string]string{"plain": "a"}))
	other := memberPod("g", 0, 1, 0)
	other.Spec.SchedulerName = "another"
	w.create(other)
	w.attempted()
	if w.where("g-0") != "" {
		t.Error("a pod of another scheduler was bound")
	}
}

func TestMembersShareANodeWhereTheyFit(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 3))
	w.create(memberPod("g", 0, 3, 2), memberPod("g", 1, 3, 2), memberPod("g", 2, 3, 2))
	w.until("all to be bound to one node", w.boundTo(map[string]string{"g-0": "a", "g-1": "a", "g-2": "a"}))
}

func TestALostMemberIsReplacedAlone(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	w.create(on(pod("blocker", 2), "c"))
	w.remove("g-1")
	w.create(on(pod("thief", 2), "b"))
	w.create(memberPod("g", 1, 2, 2))
	w.until("the refusal", w.says("g", "1 pod wanted (1 of 2 are on nodes), 0 fit: 3 nodes, 3 without free nvidia.com/gpu"))
	w.attempted()
	if w.where("g-0") != "a" || w.where("g-1") != "" {
		t.Fatalf("a member that stands was touched: %q %q", w.where("g-0"), w.where("g-1"))
	}
	w.remove("blocker")
	w.until("the new member to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "c"}))
	w.until("the gang to be placed again", func() bool { return strings.Join(w.placement("g").Nodes, " ") == "a c" })
}

func TestWaitsForAllToBeReplaced(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), on(memberPod("g", 0, 3, 2), "a"))
	w.create(memberPod("g", 1, 3, 2))
	w.until("the lost member to be told", w.says("g", "2 of 3 pods exist, 1 on nodes"))
	if r := w.placement("g").Reason; r != v1alpha1.ReasonMemberLost {
		t.Errorf("reason %s", r)
	}
	w.attempted()
	if w.where("g-1") != "" {
		t.Fatal("bound though a member is missing")
	}
	w.create(memberPod("g", 2, 3, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-1": "b", "g-2": "c"}))
}

// A restarted scheduler finds a half-bound gang by its pods and completes it.
func TestAHalfBoundGangGoesOnAfterARestart(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(memberPod("g", 0, 2, 2), "a"), memberPod("g", 1, 2, 2))
	w.until("the other to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
}

func TestANodeThatAFilterRefusesIsNeverPlanned(t *testing.T) {
	cordoned, small := node("a", 2), node("c", 1)
	cordoned.Spec.Unschedulable = true
	small.Labels["kind"] = "training"
	other := node("b", 2)
	other.Labels["kind"] = "other"
	w := newWorld(t, extras{}, cordoned, other, small, node("d", 2))
	for slot := range 2 {
		m := memberPod("g", slot, 2, 2)
		m.Spec.NodeSelector = map[string]string{"kind": "training"}
		w.create(m)
	}
	w.until("every cause to be counted", w.says("g", "2 pods wanted, 0 fit: 4 nodes, 1 without free nvidia.com/gpu (2 requested), 1 cordoned, 2 refused by NodeAffinity"))
	for _, name := range []string{"b", "d"} {
		n, err := w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n = n.DeepCopy()
		n.Labels["kind"] = "training"
		if _, err := w.client.CoreV1().Nodes().Update(w.ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "b", "g-1": "d"}))
}

func TestABadSizeIsSaid(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	m := memberPod("g", 0, 1, 1)
	m.Annotations[v1alpha1.AnnotationGangSize] = "two"
	w.create(m)
	w.until("the bad size to be told", w.says("g", `holdfast.dev/gang-size of pod g-0 is "two"`))
	w.attempted()
	if w.where("g-0") != "" {
		t.Error("bound though its size is unknown")
	}
}
