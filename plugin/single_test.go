package plugin

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Rule WholeUnits of docs/designs/priority.md: for a pod of no gang a whole gang is preempted, even if one member would have been enough.
func TestAPodHasAWholeGangLeave(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), node("c", 2))
	w.create(prior(0, gangOf("low", 3, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b", "low-2": "c"}))
	w.create(prior(5, pod("lone", 2))...)
	w.until("the pod to be placed", w.boundTo(map[string]string{"lone": "*"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "low-0 low-1 low-2" {
		t.Errorf("%v left", left)
	}
}

// Rule CheapestLeaves of docs/designs/priority.md: at equal priority a single pod is preempted, and the gang stays. A gang of lower
// priority is preempted.
func TestASinglePodLeavesBeforeAGang(t *testing.T) {
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), node("c", 2))
	w.create(prior(0, gangOf("low", 2, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"low-0": "a", "low-1": "b"}))
	w.create(prior(0, pod("single", 2))...)
	w.until("the pod to be placed", w.boundTo(map[string]string{"single": "c"}))
	w.create(prior(5, pod("first", 2))...)
	w.until("the pod to be placed", w.boundTo(map[string]string{"first": "c"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "single" {
		t.Errorf("%v left", left)
	}
	w.create(prior(9, pod("second", 2))...)
	w.until("the pod to be placed", w.boundTo(map[string]string{"second": "*"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "low-0 low-1 single" {
		t.Errorf("%v left", left)
	}
}

// Rules NobodyForNothing and BudgetsKept of docs/designs/priority.md: no pod is preempted for a pod that forbids preemption, that fits
// nowhere, or that two groups claim, nor against a disruption budget.
func TestNobodyLeavesForAPodInVain(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "kept"}}}}
	w := newWorld(t, extras{before: evicting("")}, node("a", 2), node("b", 2), budget)
	w.create(prior(0, gangOf("kept", 2, 1)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"kept-0": "*", "kept-1": "*"}))
	w.create(prior(0, gangOf("low", 1, 2)...)...)
	w.until("the gang to be placed", w.boundTo(map[string]string{"low-0": "*"}))
	modest := pod("modest", 2)
	never := v1.PreemptNever
	modest.Spec.PreemptionPolicy = &never
	torn := pod("torn", 2)
	torn.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "x"}
	torn.Annotations = map[string]string{"scheduling.k8s.io/group-name": "y"}
	w.create(prior(9, modest, pod("huge", 3), torn)...)
	for range 3 {
		w.attempted()
	}
	if left := w.whoLeft(); len(left) > 0 {
		t.Fatalf("%v left", left)
	}
	w.create(prior(9, pod("fair", 2))...)
	w.until("the pod to be placed", w.boundTo(map[string]string{"fair": "*"}))
	if left := w.whoLeft(); strings.Join(left, " ") != "low-0" {
		t.Errorf("%v left", left)
	}
}
