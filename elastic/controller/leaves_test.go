package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
)

// TestNodeEndsAPod: an agent reports that it received SIGTERM. Its pod is listed as terminating only if the node shows a reason, such as a
// shutdown.
func TestNodeEndsAPod(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	a, p := on(member("a", 0, "n1")), on(member("b", 1, "n2"))
	n1, n2 := node("n1", nil), node("n2", nil)
	b := newBench(t, g, job, a, p, n1, n2)
	l := &listener{}
	b.Coordinator = l
	look := func() ctrl.Result {
		t.Helper()
		res, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	key := coordinator.Key{Namespace: "team-a", Name: "train", Job: g.Spec.JobRef.UID}
	b.NoteTerminating(key, elastic.Pod{UID: string(p.UID), Name: p.Name})
	b.NoteTerminating(key, elastic.Pod{UID: string(p.UID), Name: p.Name})
	select {
	case e := <-b.noticed:
		if e.Object.GetName() != "train" || e.Object.GetNamespace() != "team-a" {
			t.Errorf("gang %s/%s is looked at", e.Object.GetNamespace(), e.Object.GetName())
		}
	default:
		t.Error("its gang is not looked at")
	}
	if res := look(); l.calls != 0 || res.RequeueAfter != explainAgain {
		t.Errorf("a node that says nothing: %d calls, %+v, again after %s", l.calls, l.last, res.RequeueAfter)
	}
	n2.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "node is shutting down"}}
	if err := b.Client.Status().Update(t.Context(), n2); err != nil {
		t.Fatal(err)
	}
	if res := look(); l.calls != 1 || len(l.last) != 1 || l.last[0].Pod != string(p.UID) || l.last[0].Cause != v1alpha1.CauseNodeShutdown ||
		l.last[0].Dead ||
		res.RequeueAfter != notifyAgain {
		t.Errorf("%d calls, %+v, again after %s", l.calls, l.last, res.RequeueAfter)
	}
}

// TestPodThatLeavesByItself: if the node shows no reason, the script itself ended the launcher, and the pod is not looked at again.
func TestPodThatLeavesByItself(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p := on(member("b", 1, "n2"))
	b := newBench(t, g, job, p, node("n2", nil))
	l := &listener{}
	b.Coordinator = l
	b.terminating[p.UID] = time.Now().Add(-explainMost)
	res, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}})
	if err != nil || res.RequeueAfter != 0 || l.calls != 0 {
		t.Errorf("%d calls, %+v, %v", l.calls, res, err)
	}
}

// TestPodStaysAfterAll: an agent received SIGTERM and then ran again in another container. If the node falls short of memory later, the pod
// is not listed as terminating for that.
func TestPodStaysAfterAll(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p, n := on(member("b", 1, "n2")), node("n2", nil)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}}
	b := newBench(t, g, job, p, n)
	l := &listener{}
	b.Coordinator = l
	key, pod := coordinator.Key{Namespace: "team-a", Name: "train", Job: g.Spec.JobRef.UID}, elastic.Pod{UID: string(p.UID), Name: p.Name}
	if !b.NoteTerminating(key, pod) {
		t.Error("the word was not taken")
	}
	if ends, err := b.ends(t.Context(), []corev1.Pod{*p}); err != nil || len(ends) != 1 {
		t.Errorf("a pod that leaves a node short of memory: %v, %v", ends, err)
	}
	b.ForgetTerminating(pod)
	if ends, err := b.ends(t.Context(), []corev1.Pod{*p}); err != nil || len(ends) != 0 {
		t.Errorf("a pod that stays: %v, %v", ends, err)
	}
	for len(b.noticed) < cap(b.noticed) {
		b.noticed <- event.GenericEvent{}
	}
	if b.NoteTerminating(key, pod) {
		t.Error("a word is said to be taken that is not")
	}
	<-b.noticed
	if !b.NoteTerminating(key, pod) {
		t.Error("the word was not taken when there was room")
	}
}
