package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// watched returns a pod of an observed Job: with the labels of the Job controller, and without a label of Holdfast.
func watched(slot int, node string, change func(*corev1.Pod)) *corev1.Pod {
	return pod(slot, node, func(p *corev1.Pod) {
		delete(p.Labels, v1alpha1.LabelGang)
		p.Labels[batchv1.JobNameLabel] = key.Name
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "train", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(100)}}},
		}
		change(p)
	})
}

func at(second int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 2, 3, 0, second, 0, time.UTC))
}

// The Gang of an observed Job shows what Holdfast would have done about a failure. There is one event when the failure is seen, and another
// when the pod is back.
func TestObserve(t *testing.T) {
	ms := int64(500)
	other := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "acted"}, Status: v1alpha1.GangStatus{Run: &v1alpha1.RunStatus{
		Generation: 2, Recoveries: []v1alpha1.Recovery{{Generation: 2, DecideMs: &ms, FirstStepMs: &ms}}}}}
	sick := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{
		v1alpha1.AnnotationOutage: `{"decision":"Hold","cause":"GPULost","since":"2026-01-02T03:00:30.000000Z"}`}}}
	settings := admitted()
	settings[v1alpha1.AnnotationMode] = v1alpha1.ModeObserve
	crashing := watched(0, "n1", func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			ExitCode:   137,
			Reason:     "OOMKilled",
			FinishedAt: at(40),
		}
	})
	w := newWorld(t, job(settings), other, sick, crashing, watched(1, "n2", func(*corev1.Pod) {}))
	if r := w.reconcile(); r.RequeueAfter == 0 {
		t.Error("an observed job is looked at once only")
	}
	g := w.gang()
	if g.Status.Phase != v1alpha1.PhaseStarting || g.Status.Nodes != "2/2" {
		t.Errorf("phase %s, nodes %s", g.Status.Phase, g.Status.Nodes)
	}
	count := func(events []string, reason string) int {
		return len(slices.DeleteFunc(events, func(e string) bool { return !strings.Contains(e, reason) }))
	}
	reported := w.reported()
	if count(slices.Clone(reported), v1alpha1.ReasonWouldRestart) != 1 || count(slices.Clone(reported), v1alpha1.ReasonWouldReplace) != 1 {
		t.Errorf("reported %q", reported)
	}
	w.restart() // the Gang holds what was in earlier events
	w.reconcile()
	if reported := w.reported(); count(reported, "Would") != 0 {
		t.Errorf("reported again: %q", reported)
	}
	crashing.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: at(100)}
	if err := w.client.Status().Update(t.Context(), crashing); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Minute)
	w.reconcile()
	all := w.reported()
	if len(all) != 1 || !strings.Contains(all[0], "exit code 137 (OOMKilled)") || !strings.Contains(all[0], "ran again after 1m0s") || !strings.Contains(all[0], "an estimated 59s saved") {
		t.Errorf("reported %q", all)
	}
	if g := w.gang(); g.Status.Phase != v1alpha1.PhaseRunning || len(g.Status.Notes) != 3 {
		t.Errorf("phase %s, notes %q", g.Status.Phase, g.Status.Notes)
	}
}
