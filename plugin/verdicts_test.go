package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// listening is a handle that tells what the plugin asks of it.
type listening struct {
	fwk.Handle
	filters     atomic.Int64
	onNominated func()
}

func (l *listening) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	l.filters.Add(1)
	return l.Handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
}

func (l *listening) AddNominatedPod(logger klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	if l.onNominated != nil {
		l.onNominated()
	}
	l.Handle.AddNominatedPod(logger, pod, info)
}

// A steady answer costs what changed: filters are asked about nodes that did, and only where nothing else has a say.
func TestFiltersAreAskedAboutWhatChanged(t *testing.T) {
	var objects []runtime.Object
	for i := range 12 {
		objects = append(objects, node(fmt.Sprintf("n%02d", i), 2))
	}
	w := newWorld(t, extras{}, objects...)
	w.attempted() // the scheduler is in its stride
	l := &listening{Handle: w.plugin.handle}
	w.plugin.handle = l
	asked := func(what string, pods []*v1.Pod, want int64) {
		t.Helper()
		before := l.filters.Load()
		if answer, err := w.station.Preview(w.ctx, pods); err != nil || answer.Placement.Placed {
			t.Errorf("%s: %+v, %v", what, answer.Placement, err)
		}
		if got := l.filters.Load() - before; got != want {
			t.Errorf("%s: filters were asked about %d nodes, want %d", what, got, want)
		}
	}
	asked("the first time", gangOf("g", 13, 2), 12)
	asked("again", gangOf("g", 13, 2), 0)
	w.create(on(pod("other", 0), "n03"))
	w.until("the pod to be seen", func() bool {
		seen, err := w.sched.Cache.GetPod(w.pod("other"))
		return err == nil && seen.Spec.NodeName == "n03"
	})
	asked("after a pod came", gangOf("g", 13, 2), 1)
	apart := gangOf("apart", 13, 2)
	for _, p := range apart {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "apart"}}}}}}
	}
	asked("with a rule about other pods", apart, 12)
	asked("with a rule about other pods, again", apart, 12)
}

// Where a plan is given up while it is announced, no nomination of it is left.
func TestNoNominationIsLeftOfAPlanThatWasGivenUp(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2), node("b", 2), node("c", 2))
	l := &listening{Handle: w.plugin.handle}
	w.plugin.handle = l
	given := false
	l.onNominated = func() {
		if !given { // the last member is told to end, as a handler of events would note
			given = true
			w.plugin.parted(klog.Background(), key("g"), w.plugin.gangs.Leave(key("g"), w.pod("g-2")))
		}
	}
	for _, p := range gangOf("g", 3, 2) {
		w.create(p)
	}
	w.until("all to be there", func() bool {
		r, missing := w.plugin.gangs.PlanInput(key("g"))
		return missing == nil && len(r.Members) == 3
	})
	plan := map[types.UID]string{}
	r, _ := w.plugin.gangs.PlanInput(key("g"))
	placement := placementOn("a", "b", "c")
	for i, m := range r.Members {
		plan[m.Pod.UID] = placement.Seats[i].Node
	}
	if err := w.plugin.adopt(w.ctx, key("g"), r.Members[0].Pod, r, placement); err != nil || !given {
		t.Fatalf("%v, given up: %v", err, given)
	}
	for _, name := range []string{"a", "b", "c"} {
		for _, p := range l.NominatedPodsForNode(name) {
			t.Errorf("pod %s is still nominated for node %s, its plan is %v", p.GetPod().Name, name, plan)
		}
	}
}

func placementOn(nodes ...string) gang.Placement {
	p := gang.Placement{Placed: len(nodes)}
	for slot, node := range nodes {
		p.Seats = append(p.Seats, gang.Seat{Slot: slot, Member: fmt.Sprint("g-", slot), Node: node})
	}
	return p
}

// A node that is gone is taken out; nothing else is counted anew for it.
func TestANodeThatIsGoneIsTakenOut(t *testing.T) {
	const rack = "topology.kubernetes.io/rack"
	w := newWorld(t, extras{}, labelled(node("a", 2), rack, "r1"), labelled(node("b", 2), rack, "r2"))
	w.attempted()
	if answer, err := w.station.Preview(w.ctx, gangOf("g", 3, 2)); err != nil || !strings.Contains(answer.Placement.Message, "2 nodes") {
		t.Fatalf("%+v, %v", answer.Placement, err)
	}
	tree := w.plugin.tree
	if err := w.client.CoreV1().Nodes().Delete(w.ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(labelled(node("c", 4), rack, "r3"))
	w.until("the nodes to be seen", func() bool {
		answer, err := w.station.Preview(w.ctx, gangOf("g", 4, 2))
		return err == nil && answer.Nodes == 2 && strings.Contains(answer.Placement.Message, "4 pods wanted, 3 fit: 2 nodes")
	})
	if w.plugin.tree != tree || tree.Len() != 2 || len(w.plugin.fabric.labels) != 2 {
		t.Errorf("the tree was built anew: %v, or has %d nodes and %d labels", w.plugin.tree != tree, tree.Len(), len(w.plugin.fabric.labels))
	}
}

// Devices of a pod that belongs to its node do not make the node used.
func TestDevicesOfAttendantsAreNoUse(t *testing.T) {
	daemon := on(pod("daemon", 1), "b")
	daemon.Namespace = "kube-system"
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(pod("other", 1), "a"), daemon)
	w.attempted()
	if _, err := w.station.Preview(w.ctx, gangOf("g", 1, 1)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a": true, "b": false} {
		i, _ := w.plugin.tree.Find(name)
		if w.plugin.tree.Used(i) != want || w.plugin.tree.Free(i, gpu) != 1 {
			t.Errorf("node %s is used: %v, %d free", name, w.plugin.tree.Used(i), w.plugin.tree.Free(i, gpu))
		}
	}
}
