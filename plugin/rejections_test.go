package plugin

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// fails sets the status of a pod that the kubelet did not admit.
func (w *world) fails(name, reason string) {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	p = p.DeepCopy()
	p.Status.Phase, p.Status.Reason = v1.PodFailed, reason
	if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.until("the rejection to be seen", func() bool { return !w.plugin.gangs.Has(key("g"), p.UID) })
	w.remove(name)
}

// aRejectsTwice makes node a reject two members. The third member is placed on node b.
func (w *world) aRejectsTwice() {
	w.t.Helper()
	for range 2 {
		w.create(memberPod("g", 0, 1, 2))
		w.until("the member to be bound", w.boundTo(map[string]string{"g-0": "a"}))
		w.fails("g-0", "UnexpectedAdmissionError")
	}
	w.create(memberPod("g", 0, 1, 2))
	w.until("the member to go elsewhere", w.boundTo(map[string]string{"g-0": "b"}))
}

// A ready node that rejects every pod is excluded after two rejections, and the gang is placed elsewhere. The exclusion ends after a time.
func TestANodeThatRejectsIsSetAside(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	w.aRejectsTwice()
	w.create(memberPod("big", 0, 3, 2), memberPod("big", 1, 3, 2), memberPod("big", 2, 3, 2))
	w.until("the reason", w.says("big", "3 pods wanted, 2 fit: 4 nodes, 1 without free nvidia.com/gpu (2 requested), 1 unhealthy (RejectsPods): a"))
	w.plugin.noteStuck(klog.Background(), time.Now())
	w.attempted()
	if w.where("big-0") != "" {
		t.Error("the node came back too soon")
	}
	w.plugin.rejections.mu.Lock()
	w.plugin.rejections.late = 61 * time.Second
	w.plugin.rejections.mu.Unlock()
	w.plugin.noteStuck(klog.Background(), time.Now())
	w.until("all to be bound once the node is back", w.boundTo(map[string]string{"big-0": "a", "big-1": "c", "big-2": "d"}))
}

// TestAReleasedPodCountsAgainstItsNode: admission releases a rejected member from its job before its failure is stored, and the release has
// the reason. A pod that its node evicted says nothing about what the node admits.
func TestAReleasedPodCountsAgainstItsNode(t *testing.T) {
	for reason, then := range map[string]string{"OutOfcpu": "b", "Evicted": "a"} {
		w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
		for range 2 {
			w.create(memberPod("g", 0, 1, 2))
			w.until("the member to be bound", w.boundTo(map[string]string{"g-0": "a"}))
			w.change("g-0", func(p *v1.Pod) {
				p.Labels[v1alpha1.LabelReplaced], p.Annotations[v1alpha1.AnnotationEndedByNode] = "true", reason
			})
			w.until("the release to be seen", func() bool { return !w.plugin.gangs.Knows(key("g")) })
			w.fails("g-0", reason)
		}
		w.create(memberPod("g", 0, 1, 2))
		w.until("the member to go there", w.boundTo(map[string]string{"g-0": then}))
	}
}

// TestSickWhateverTheEffect: a taint that repairing pods tolerate still excludes members.
func TestSickWhateverTheEffect(t *testing.T) {
	for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule} {
		for _, taint := range []string{v1alpha1.TaintUnhealthy, v1alpha1.TaintOutage} {
			n := node("a", 2)
			n.Spec.Taints = []v1.Taint{{Key: taint, Value: "DriverGone", Effect: effect}}
			if cause, sick := unhealthy(n); !sick || cause != "DriverGone" {
				t.Errorf("%s:%s: %v %s", taint, effect, sick, cause)
			}
		}
	}
}

// A Node that was re-created under the same name has rejected no pod.
func TestANewNodeOfThatNameIsNotSetAside(t *testing.T) {
	one := node("a", 2)
	one.UID = "first"
	w := newWorld(t, extras{}, one)
	for range 2 {
		w.create(memberPod("g", 0, 1, 2))
		w.until("the member to be bound", w.boundTo(map[string]string{"g-0": "a"}))
		w.fails("g-0", "UnexpectedAdmissionError")
	}
	w.create(memberPod("g", 0, 1, 2))
	w.until("the node to be set aside", w.says("g", "1 unhealthy (RejectsPods): a"))
	another := node("a", 2)
	another.UID = "second"
	if err := w.client.CoreV1().Nodes().Delete(w.ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(another)
	w.until("the member to be bound there", w.boundTo(map[string]string{"g-0": "a"}))
}

// A user who can create pods can name any node in them and make them fail there. No node is excluded for such pods.
func TestPodsThatNobodyPlacedSetNoNodeAside(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	for range 4 {
		w.create(on(memberPod("g", 0, 1, 0), "a"))
		w.until("the pod to be seen", func() bool { return w.plugin.gangs.Knows(key("g")) })
		w.fails("g-0", "UnexpectedAdmissionError")
	}
	if n, _ := w.plugin.rejections.refresh(time.Now(), 2); n > 0 {
		t.Error("pods that named their node themselves set it aside")
	}
}

// Rejections of one namespace's pods exclude the node only for gangs of that namespace.
func TestANodeIsSetAsideForTheNamespaceThatMetIt(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	w.aRejectsTwice()
	w.plugin.rejections.refresh(time.Now(), 4)
	if _, ill := w.plugin.rejections.Unhealthy(node("a", 2), "ns"); !ill {
		t.Error("the namespace whose pods it rejected may use it")
	}
	if _, ill := w.plugin.rejections.Unhealthy(node("a", 2), "other"); ill {
		t.Error("another namespace may not use it")
	}
}

// No node is excluded because an image cannot be pulled or a referenced object is missing.
func TestOwnFaultsOfPods(t *testing.T) {
	waits := func(reason string) v1.ContainerStatus {
		return v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
	}
	for reason, own := range map[string]bool{"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "CreateContainerConfigError": true, "CrashLoopBackOff": true,
		"ContainerCreating": false, "PodInitializing": false} {
		for where, status := range map[string]v1.PodStatus{
			"container":      {ContainerStatuses: []v1.ContainerStatus{waits(reason)}},
			"init container": {InitContainerStatuses: []v1.ContainerStatus{waits(reason)}},
		} {
			if startsNowhere(&v1.Pod{Status: status}) != own {
				t.Errorf("%s of %s: own fault: %v", reason, where, !own)
			}
		}
	}
}

// A pod that ran, or that failed for its own reasons, is no evidence against its node.
func TestEndsThatAreNotTheNodes(t *testing.T) {
	base := func() *v1.Pod {
		p := on(memberPod("g", 0, 1, 2), "a")
		p.Status.Phase, p.Status.Reason = v1.PodFailed, "OutOfcpu"
		return p
	}
	for name, c := range map[string]struct {
		change func(*v1.Pod)
		want   bool
	}{
		"not admitted": {func(*v1.Pod) {}, true},
		"devices":      {func(p *v1.Pod) { p.Status.Reason = "UnexpectedAdmissionError" }, true},
		"evicted":      {func(p *v1.Pod) { p.Status.Reason = "Evicted" }, false},
		"its own":      {func(p *v1.Pod) { p.Status.Reason = "" }, false},
		"on no node":   {func(p *v1.Pod) { p.Spec.NodeName = "" }, false},
		"alive":        {func(p *v1.Pod) { p.Status.Phase = v1.PodPending }, false},
		"a container ended": {func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}
		}, false},
	} {
		p := base()
		c.change(p)
		if said, ok := refusedByKubelet(p); ok != c.want || (ok && said == "") {
			t.Errorf("%s: %q %v", name, said, ok)
		}
	}
}

func TestABrokenWebhookIsNoNodesFault(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.mu.Lock()
	w.refuseBind["g-0"] = 3
	w.mu.Unlock()
	w.create(memberPod("g", 0, 1, 2))
	w.until("the member to be bound", w.boundTo(map[string]string{"g-0": "a"}))
	if n, _ := w.plugin.rejections.refresh(time.Now(), 2); n > 0 {
		t.Errorf("errors of the API server set aside %d nodes", n)
	}
	if strings.Contains(w.placement("g").Message, causeRejecting) {
		t.Error(w.placement("g").Message)
	}
}
