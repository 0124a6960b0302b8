package plugin

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// While the scheduler's cache lacks a member that the gang cache still counts, the gang is not planned, and no other gang gives way to it.
func TestNoPlanCountsAMemberThatIsGone(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2), node("b", 2), on(memberPod("g", 0, 2, 2), "a"), memberPod("g", 1, 2, 2))
	w.until("the gang to be known", func() bool { _, missing := w.plugin.gangs.PlanInput(key("g")); return missing == nil })
	placed, leader := w.pod("g-0"), w.pod("g-1")
	if err := w.sched.Cache.RemovePod(klog.Background(), placed); err != nil {
		t.Fatal(err)
	}
	nodes := w.snapshot()
	input, _ := w.plugin.gangs.PlanInput(key("g"))
	if message, err := w.plugin.plan(w.ctx, key("g"), leader, nodes); err != nil || message == "" || w.plugin.gangs.IsOpen(key("g")) {
		t.Errorf("planned: %q, %v", message, err)
	}
	if !w.plugin.planner.Outdated(input) {
		t.Error("the members count as up to date")
	}
	if err := w.sched.Cache.AddPod(klog.Background(), placed); err != nil {
		t.Fatal(err)
	}
	nodes = w.snapshot()
	if message, err := w.plugin.plan(w.ctx, key("g"), leader, nodes); err != nil || message != "" || !w.plugin.gangs.IsOpen(key("g")) {
		t.Errorf("not planned: %q, %v", message, err)
	}
}

// A pod that is moved into another gang by its label leaves the first one.
func TestAPodThatChangesItsGang(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2), on(memberPod("g", 0, 2, 2), "a"), memberPod("g", 1, 2, 2))
	w.until("the gang to be known", func() bool { _, missing := w.plugin.gangs.PlanInput(key("g")); return missing == nil })
	moved := w.pod("g-0").DeepCopy()
	moved.Labels[v1alpha1.LabelGang] = "h"
	if _, err := w.client.CoreV1().Pods(moved.Namespace).Update(context.Background(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("it to be a member of the other gang alone", func() bool {
		return w.plugin.gangs.Has(key("h"), moved.UID) && !w.plugin.gangs.Has(key("g"), moved.UID)
	})
}
