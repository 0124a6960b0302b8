package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// change updates a pod at the API server.
func (w *world) change(name string, f func(*v1.Pod)) {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	p = p.DeepCopy()
	f(p)
	if _, err := w.client.CoreV1().Pods("ns").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// release takes a pod out of its gang as the elastic controller does. The pod goes on running.
func (w *world) release(names ...string) {
	for _, name := range names {
		w.change(name, func(p *v1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" })
	}
}

// again returns a new pod for a slot, with another name, as a Job's controller creates it.
func again(gangName string, slot, size int, gpus int64) *v1.Pod {
	p := memberPod(gangName, slot, size, gpus)
	p.Name += "-again"
	return p
}

func (w *world) taint(node, key, value string) {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	n = n.DeepCopy()
	n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffectNoSchedule})
	if _, err := w.client.CoreV1().Nodes().Update(w.ctx, n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// knows waits until the plugin counts that many members.
func (w *world) knows(n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("the plugin to know %d members", n), func() bool {
		return len(w.plugin.gangs.List(key("g")).Members) == n
	})
}

// A released pod is no longer a member, but uses its resources until it is gone.
func TestAReleasedPodIsReplacedWhileItEnds(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.release("g-1")
	w.knows(1)
	w.create(again("g", 1, 2, 2))
	w.until("the old pod's node to be taken still", w.says("g", "1 pod wanted (1 of 2 are on nodes), 0 fit: 2 nodes, 2 without free nvidia.com/gpu (2 requested)"))
	w.attempted()
	if at := w.where("g-1-again"); at != "" {
		t.Fatalf("bound to %s beside the old pod", at)
	}
	w.create(node("c", 2))
	w.until("the new pod to be bound while the old one ends", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-1-again": "c"}))
	w.until("the gang to be placed again", func() bool { return strings.Join(w.placement("g").Nodes, " ") == "a c" })
	w.remove("g-1")
	w.attempted()
	if p := w.placement("g"); !p.Placed {
		t.Errorf("the end of a pod that is no member changed the answer: %+v", p)
	}
}

// After the watch was interrupted, the end of a pod and the creation of another pod of the same name arrive as one change.
func TestAnotherPodOfTheSameName(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	was, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "g-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is := was.DeepCopy()
	is.UID, is.Spec.NodeName, is.Status.Phase = "another", "", v1.PodPending
	events := w.plugin.podEvents(klog.FromContext(w.ctx))
	w.until("the other pod alone to be a member", func() bool {
		events.OnUpdate(was, is) // again each time: the watch may still deliver an older change of g-1
		return !w.plugin.gangs.Has(key("g"), was.UID) && w.plugin.gangs.Has(key("g"), is.UID)
	})
}

// Two lost members are placed together or not at all. The other members stay where they are.
func TestTwoLostMembersArePlacedTogetherOrNotAtAll(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	for slot := range 3 {
		w.create(memberPod("g", slot, 3, 2))
	}
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c"}))
	w.release("g-1", "g-2")
	w.knows(1)
	w.create(again("g", 1, 3, 2))
	w.until("the other to be awaited", w.says("g", "2 of 3 pods exist, 1 on nodes: waiting for slot 2 to be re-created"))
	w.attempted()
	if at := w.where("g-1-again"); at != "" {
		t.Fatalf("g-1 was placed on %s without g-2", at)
	}
	w.create(again("g", 2, 3, 2))
	w.until("both to be refused", w.says("g", "2 pods wanted (1 of 3 are on nodes), 1 fits: 4 nodes, 3 without free"))
	w.attempted()
	for _, name := range []string{"g-1-again", "g-2-again"} {
		if at := w.where(name); at != "" {
			t.Errorf("%s is on %s, though not both fit", name, at)
		}
	}
	w.remove("g-1")
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1-again": "b", "g-2-again": "d"}))
	if d := w.deleted(); len(d) != 1 {
		t.Errorf("deleted %v: a gang that runs was taken back", d)
	}
}

// Two pods in one slot do not count for an empty slot.
func TestAnOldPodDoesNotCountForAnotherSlot(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	for slot := range 3 {
		w.create(memberPod("g", slot, 3, 2))
	}
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c"}))
	w.remove("g-2")
	w.knows(2)
	w.create(again("g", 1, 3, 2))
	w.knows(3)
	w.attempted()
	if at := w.where("g-1-again"); at != "" {
		t.Errorf("placed on %s while slot 2 is empty", at)
	}
}

// tolerant tolerates all taints, as some training pods do.
func tolerant(p *v1.Pod) *v1.Pod {
	p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	return p
}

func TestAReplacedMemberIsKeptOffBadNodes(t *testing.T) {
	for _, c := range []struct {
		name string
		spec func(*v1.Node)
		as   func(*v1.Pod) *v1.Pod
		says string
	}{
		{"cordoned", func(n *v1.Node) { n.Spec.Unschedulable = true }, nil, "1 cordoned"},
		{"tainted by others", taintWith("maintenance", "x"), nil, "1 tainted (maintenance)"},
		{"our verdict", taintWith(v1alpha1.TaintUnhealthy, "XidOffBus"), nil, "1 unhealthy (XidOffBus): b"},
		{"our decision", taintWith(v1alpha1.TaintOutage, "NodeUnreachable"), nil, "1 unhealthy (NodeUnreachable): b"},
		{"our verdict, a pod that tolerates all", taintWith(v1alpha1.TaintUnhealthy, "XidOffBus"), tolerant, "1 unhealthy (XidOffBus): b"},
		{"our decision, a pod that tolerates all", taintWith(v1alpha1.TaintOutage, "NodeUnreachable"), tolerant, "1 unhealthy (NodeUnreachable): b"},
		{"not ready, a pod that tolerates all", readyIs(v1.ConditionFalse), tolerant, "1 unhealthy (NotReady): b"},
		{"silent, a pod that tolerates all", readyIs(v1.ConditionUnknown), tolerant, "1 unhealthy (NotReady): b"},
		{"fewer devices than it has", func(n *v1.Node) {
			n.Status.Allocatable = n.Status.Allocatable.DeepCopy()
			n.Status.Allocatable[gpu] = *resource.NewQuantity(1, resource.DecimalSI)
		}, nil, "1 unhealthy (DevicesLost): b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := node("b", 2)
			c.spec(bad)
			as := c.as
			if as == nil {
				as = func(p *v1.Pod) *v1.Pod { return p }
			}
			w := newWorld(t, extras{}, node("a", 2), bad, on(as(memberPod("g", 0, 2, 2)), "a"), on(as(memberPod("g", 1, 2, 2)), "b"))
			w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
			w.release("g-1")
			w.remove("g-1")
			w.knows(1)
			w.create(as(again("g", 1, 2, 2)))
			w.until("the cause to be told", w.says("g", c.says))
			w.attempted()
			if at := w.where("g-1-again"); at != "" {
				t.Fatalf("placed on %s", at)
			}
			good := node("c", 2)
			readyIs(v1.ConditionTrue)(good)
			w.create(good)
			w.until("a good node to be taken", w.boundTo(map[string]string{"g-0": "a", "g-1-again": "c"}))
		})
	}
}

func taintWith(key, value string) func(*v1.Node) {
	return func(n *v1.Node) {
		n.Spec.Taints = []v1.Taint{{Key: key, Value: value, Effect: v1.TaintEffectNoSchedule}}
	}
}

func readyIs(is v1.ConditionStatus) func(*v1.Node) {
	return func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: is}}
	}
}

// A node that becomes sick between plan and binding is not used, whatever the pod tolerates.
func TestANodeThatFallsIllUnderAPlanIsNotFollowed(t *testing.T) {
	s := &saboteur{}
	var w *world
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-0" && w.where("g-0") == "" {
			w.taint("b", v1alpha1.TaintUnhealthy, "XidOffBus")
			w.until("the scheduler's cache to know", func() bool {
				dump := w.sched.Cache.Dump()
				return len(dump.Nodes["b"].Node().Spec.Taints) > 0
			})
		}
	}
	w = newWorld(t, s.extras(), node("a", 2), node("b", 2), node("c", 2))
	w.create(tolerant(memberPod("g", 0, 2, 2)), tolerant(memberPod("g", 1, 2, 2)))
	w.until("both to be bound to healthy nodes", w.boundTo(map[string]string{"g-0": "a", "g-1": "c"}))
}

// No controller re-creates a member that succeeded. A lost member beside it must not wait for it.
func TestALostMemberDoesNotWaitForOneThatEndedWell(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	for slot := range 3 {
		w.create(ownedBy("now", memberPod("g", slot, 3, 2)))
	}
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c"}))
	w.change("g-0", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
	w.remove("g-2")
	w.knows(1)
	w.create(ownedBy("now", again("g", 2, 3, 2)))
	w.knows(2)
	w.until("the end of the first to be found out", func() bool {
		w.plugin.inspectAt(w.ctx, time.Now())
		return w.where("g-2-again") == "c"
	})
	if w.where("g-1") != "b" {
		t.Error("the member that runs was touched")
	}
}

func (w *world) pod(name string) *v1.Pod {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// If a gang has lost a member and has all others on nodes, its message names the loss once it is known that the member did not succeed.
func TestALostMemberIsToldThoughNobodyWaits(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	w.change("g-1", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	w.knows(1)
	w.until("the loss to be told", func() bool {
		w.plugin.inspectAt(w.ctx, time.Now())
		return w.says("g", "1 of 2 pods exist, 1 on nodes: waiting for slot 1 to be re-created (pod g-1 is still terminating on node b)")()
	})
	if r := w.placement("g").Reason; r != v1alpha1.ReasonMemberLost {
		t.Errorf("reason %s", r)
	}
}

// A gang that was never complete gives its nodes back if a member does not return.
func TestAFormingGangThatLostAMemberForGoodGivesItsNodesBack(t *testing.T) {
	s := &saboteur{spoils: map[string]string{"g-1": "b"}}
	w := newWorld(t, s.extras(), node("a", 2), node("b", 2))
	w.mu.Lock()
	w.onBind = func(pod, _ string) {
		if pod == "g-0" { // the other pod is deleted before it gets its node
			_ = w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "g-1")
		}
	}
	w.mu.Unlock()
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-1" {
			w.until("the first to be bound", func() bool { return w.where("g-0") != "" })
		}
	}
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("half of it to be bound", func() bool { return w.where("g-0") == "a" && w.where("g-1") == "gone" })
	w.knows(1)
	now := time.Now()
	w.plugin.inspectAt(w.ctx, now)
	w.plugin.inspectAt(w.ctx, now.Add(w.plugin.args.InitialPlacementTimeout.Duration-time.Second))
	if at := w.where("g-0"); at != "a" {
		t.Fatalf("taken back too early: %q", at)
	}
	w.until("it to be taken back", func() bool {
		w.plugin.inspectAt(w.ctx, now.Add(w.plugin.args.InitialPlacementTimeout.Duration+time.Minute))
		return w.where("g-0") == "gone"
	})
	w.until("the reason to be told", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events["g-0"], func(e string) bool {
			return strings.HasPrefix(e, "RolledBack: ") && strings.Contains(e, "the initial placement is rolled back")
		})
	})
}

// A gang that was complete keeps its nodes, however long a member is missing.
func TestAGangThatRunsKeepsItsNodes(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("the gang to be placed", func() bool { return w.placement("g").Placed })
	w.remove("g-1")
	w.knows(1)
	for hour := range 3 {
		w.plugin.inspectAt(w.ctx, time.Now().Add(time.Duration(hour)*time.Hour))
	}
	if at := w.where("g-0"); at != "a" {
		t.Errorf("g-0 is %q", at)
	}
}

// The room of an open plan is held even if the scheduling queue has lost the nominations.
func TestAPlanHoldsItsPlacesWithoutNominations(t *testing.T) {
	s := &saboteur{}
	var w *world
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-0" {
			w.plugin.handle.DeleteNominatedPodIfExists(w.pod("g-1"))
			h := memberPod("h", 0, 1, 2)
			h.Spec.NodeSelector = map[string]string{v1.LabelHostname: "b"}
			response, err := w.plugin.answers.Preview(w.ctx, []*v1.Pod{h})
			if err != nil || response.Placement.Placed {
				t.Errorf("another gang would get a place that is planned for: %+v %v", response, err)
			}
		}
	}
	w = newWorld(t, s.extras(), node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
}
