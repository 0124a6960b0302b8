package plugin

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// betweenTwo runs f in the scheduling cycle of the gang's leader: after the leader was reserved, and before any other member was.
func betweenTwo(t *testing.T, w **world, f func(w *world)) *saboteur {
	t.Helper()
	s := &saboteur{}
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-0" {
			f(*w)
		}
	}
	return s
}

// filtered returns the results of the plugin's own PreFilter and Filter for a pod on a node, on the present snapshot.
func (w *world) filtered(pod *v1.Pod, node string) *fwk.Status {
	w.t.Helper()
	state := framework.NewCycleState()
	all, err := w.plugin.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		w.t.Fatal(err)
	}
	if _, status := w.plugin.PreFilter(context.Background(), state, pod, all); status.IsSkip() {
		return status
	}
	info, err := w.plugin.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.plugin.Filter(context.Background(), state, pod, info)
}

// From the opening of a plan on, its nodes are exclusive and its spares are promised, before any pod is on these nodes.
func TestAnOpenPlanClosesItsNodes(t *testing.T) {
	var w *world
	s := betweenTwo(t, &w, func(w *world) {
		answer, err := w.plugin.answers.Preview(w.ctx, only("b", gangOf("h", 1, 2)))
		if err != nil || answer.Placement.Placed || !strings.Contains(answer.Placement.Message, "1 used exclusively by another gang") {
			t.Errorf("another gang is told %+v, %v", answer.Placement, err)
		}
		urgent := pod("urgent", 0) // a pod of this priority ignores nominations
		urgent.Spec.Priority = ptr.To[int32](1000)
		if status := w.filtered(urgent, "b"); !status.IsRejected() || !strings.Contains(status.Message(), "used exclusively by gang ns/g") {
			t.Errorf("a pod of no gang is told %v", status)
		}
	})
	w = newWorld(t, s.extras(), node("a", 8), node("b", 8))
	for _, p := range gangOf("g", 2, 5) { // one pod per node: by counts there is room for others
		w.create(asking(p, v1alpha1.AnnotationWholeNodes, "true"))
	}
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.remove("g-0", "g-1")
	w.until("nothing to be closed", func() bool { return !w.plugin.gangs.AnyExclusive() })
	if status := w.filtered(pod("late", 0), "b"); !status.IsSkip() {
		t.Errorf("where no node is closed a pod of no gang is looked at on each: %v", status)
	}
}

// only restricts pods to one node.
func only(node string, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		p.Spec.NodeSelector = map[string]string{v1.LabelHostname: node}
	}
	return pods
}

// From the opening of a plan on, its spares are promised. No pod is in the second domain yet.
func TestAnOpenPlanPromisesItsSpares(t *testing.T) {
	const clique = "nvidia.com/gpu.clique"
	var w *world
	s := betweenTwo(t, &w, func(w *world) {
		answer, err := w.plugin.answers.Preview(w.ctx, only("d", gangOf("h", 1, 2)))
		if err != nil || answer.Placement.Placed || !strings.Contains(answer.Placement.Message, "1 kept as spare") {
			t.Errorf("another gang is told %+v, %v", answer.Placement, err)
		}
	})
	w = newWorld(
		t,
		s.extras(),
		labelled(node("a", 2), clique, "x"),
		labelled(node("b", 2), clique, "x"),
		labelled(node("c", 2), clique, "y"),
		labelled(node("d", 2), clique, "y"),
	)
	for _, p := range gangOf("g", 2, 2) {
		w.create(asking(asking(p, v1alpha1.AnnotationSpares, "1"), v1alpha1.AnnotationSliceSize, "1"))
	}
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "c"}))
}

// Another scheduler ignores plans. If it places a pod on a node that the plan uses exclusively, the plan is not followed.
func TestAPlannedNodeThatIsNotWholeAnyMoreIsNotUsed(t *testing.T) {
	s := &saboteur{}
	var w *world
	s.onReserve = func(p *v1.Pod) {
		if p.Name != "g-0" || w.where("intruder") != "gone" {
			return
		}
		w.create(on(pod("intruder", 0), "b"))
		w.until("the scheduler to see it", func() bool {
			n, err := w.sched.Cache.GetPod(w.pod("intruder"))
			return err == nil && n.Spec.NodeName == "b"
		})
	}
	w = newWorld(t, s.extras(), node("a", 8), node("b", 8), node("c", 8))
	for _, p := range gangOf("g", 2, 8) {
		w.create(asking(p, v1alpha1.AnnotationWholeNodes, "true"))
	}
	w.until("the others to be used", w.boundTo(map[string]string{"g-0": "a", "g-1": "c"}))
}

// A pod of a gang that another scheduler placed makes its node exclusive too. A terminating pod does so until it is gone.
func TestStraysCloseTheirNodes(t *testing.T) {
	foreign := asking(memberPod("f", 0, 1, 2), v1alpha1.AnnotationWholeNodes, "true")
	foreign.Spec.SchedulerName = "other"
	w := newWorld(t, extras{}, node("a", 8), on(foreign, "a"))
	w.attempted() // the snapshot is there
	if status := w.filtered(pod("late", 0), "a"); !status.IsRejected() {
		t.Errorf("beside a pod of another scheduler's: %v", status)
	}
	w.remove("f-0")
	w.until("nothing to be closed", func() bool { return !w.plugin.gangs.AnyExclusive() })
}
