package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// A gang that requests whole nodes gets nodes on which only daemons run. No pod of others is placed there later.
func TestWholeNodesAreWhole(t *testing.T) {
	daemon := on(pod("daemon", 0), "b")
	daemon.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: new(true)}}
	w := newWorld(t, extras{}, node("a", 8), node("b", 8), on(pod("other", 0), "a"), daemon)
	w.create(asking(memberPod("g", 0, 1, 2), v1alpha1.AnnotationWholeNodes, "true"))
	w.until("the gang to be on the node that nobody uses", w.boundTo(map[string]string{"g-0": "b"}))
	late := pod("late", 0)
	late.Spec.NodeSelector = map[string]string{v1.LabelHostname: "b"}
	w.create(late)
	w.until("the pod to be refused", func() bool { return len(w.failures("late")) > 0 })
	w.create(memberPod("h", 0, 1, 8))
	w.until("another gang to go elsewhere", w.boundTo(map[string]string{"h-0": "a"}))
	w.remove("g-0")
	w.until("the pod to be let in", w.boundTo(map[string]string{"late": "b"}))
}

// When nodes get labels, the levels of the fabric are found. A gang that waits for such a level is then placed.
func TestLevelsAreFoundWhenNodesAreLabelled(t *testing.T) {
	const rack = "topology.kubernetes.io/rack"
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	for slot := range 2 {
		w.create(asking(memberPod("g", slot, 2, 2), v1alpha1.AnnotationTopologyRequired, "rack"))
	}
	w.until("the level to be missed", w.says("g", `there is no topology level "rack"`))
	if p := w.placement("g"); p.Reason != v1alpha1.ReasonInvalidTopology {
		t.Errorf("reason %s", p.Reason)
	}
	for name, value := range map[string]string{"a": "r1", "b": "r2", "c": "r2"} {
		n, err := w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.CoreV1().Nodes().Update(w.ctx, labelled(n.DeepCopy(), rack, value), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.until("both to be in one rack", w.boundTo(map[string]string{"g-0": "b", "g-1": "c"}))
	w.until("the pod to be told its rack", func() bool {
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "g-1", metav1.GetOptions{})
		return err == nil && p.Annotations[v1alpha1.AnnotationTopologyDomain] == "rack=r2"
	})
}

// No other gang gets the spares that a gang was promised. A replaced member of that gang gets them.
func TestSparesAreKeptForTheirGang(t *testing.T) {
	const clique = "nvidia.com/gpu.clique"
	w := newWorld(t, extras{}, labelled(node("a", 2), clique, "x"), labelled(node("b", 2), clique, "x"), labelled(node("c", 2), clique, "x"))
	for slot := range 2 {
		w.create(asking(memberPod("g", slot, 2, 2), v1alpha1.AnnotationSpares, "1"))
	}
	w.until("the gang to be placed", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.create(memberPod("h", 0, 1, 2))
	w.until("the other to be told", w.says("h", "1 kept as spare"))
	w.remove("h-0")
	w.until("the other to be gone", func() bool { return w.where("h-0") == "gone" })
	w.remove("g-1")
	w.create(on(pod("thief", 2), "b"))
	again := asking(memberPod("g", 1, 2, 2), v1alpha1.AnnotationSpares, "1")
	w.create(again)
	w.until("the member to take the spare", w.boundTo(map[string]string{"g-1": "c"}))
}
