package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestWhyAPodIsMissing: while the Job controller cannot create a pod, the Gang has its reason, in the Job controller's words but without
// the pod's name, which differs at each try.
func TestWhyAPodIsMissing(t *testing.T) {
	at := func(d time.Duration) metav1.Time {
		return metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(d))
	}
	w := newWorld(t, job(admitted()), pod(0, "n0", func(p *corev1.Pod) { p.CreationTimestamp = at(-time.Minute) }))
	said := func(n int, uid types.UID, reason, text string, when metav1.Time) client.Object {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprint("e", n)},
			InvolvedObject: corev1.ObjectReference{UID: uid},
			Reason:         reason,
			Message:        text,
			LastTimestamp:  when,
		}
	}
	message := func(kind string) string { return meta.FindStatusCondition(w.gang().Status.Conditions, kind).Message }
	w.add(said(1, "job-1", "FailedCreate", `Error creating: pods "llama-1-old" is forbidden: of yesterday`, at(-2*time.Minute)))
	w.add(said(2, "job-0", "FailedCreate", "another Job's", at(0)))
	w.add(said(3, "job-1", "SuccessfulCreate", "Created pod", at(0)))
	if result := w.reconcile(); result.RequeueAfter != refusedAgain || message(v1alpha1.ConditionPlaced) != "1 of 2 pods exist, 1 on nodes: waiting for slot 1 to be re-created" {
		t.Errorf("again after %s: %s", result.RequeueAfter, message(v1alpha1.ConditionPlaced))
	}
	const quota = "exceeded quota: team, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=3"
	w.now = w.now.Add(refusedAgain)
	w.add(said(4, "job-1", "FailedCreate", `Error creating: pods "llama-1-x7k" is forbidden: `+quota+"\x1b[2J", at(-30*time.Second)))
	w.reconcile()
	if got := message(v1alpha1.ConditionPlaced); !strings.HasSuffix(got, "; the Job controller cannot create a pod: "+quota+`\x1b[2J`) || w.condition(v1alpha1.ConditionPlaced) != "False MemberLost" {
		t.Errorf("%s: %s", w.condition(v1alpha1.ConditionPlaced), got)
	}
	w.add(pod(1, "n1", func(p *corev1.Pod) { p.CreationTimestamp = at(0) }))
	if result := w.reconcile(); result.RequeueAfter != 0 || strings.Contains(message(v1alpha1.ConditionPlaced), "quota") {
		t.Errorf("again after %s: %s", result.RequeueAfter, message(v1alpha1.ConditionPlaced))
	}
	w.now = w.now.Add(time.Hour) // much later a pod is lost
	if err := w.client.Delete(context.Background(), pod(1, "n1")); err != nil {
		t.Fatal(err)
	}
	if w.reconcile(); strings.Contains(message(v1alpha1.ConditionPlaced), "quota") {
		t.Error(message(v1alpha1.ConditionPlaced))
	}
}

// TestEventsAreListedNowAndThen: while pods are being created the gang is reconciled for each of them, but events, which are read from
// etcd, are listed at intervals. If events cannot be listed, the rest of the status is still written.
func TestEventsAreListedNowAndThen(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "n0"))
	lists := func() (n int) {
		for _, o := range w.lists {
			if o.FieldSelector != nil && strings.Contains(o.FieldSelector.String(), "reason="+failedCreate) {
				n++
			}
		}
		return n
	}
	for range 5 {
		w.reconcile()
	}
	if n := lists(); n != 1 {
		t.Errorf("%d lists of events for five looks at once", n)
	}
	w.now = w.now.Add(refusedAgain)
	if w.reconcile(); lists() != 2 {
		t.Errorf("%d lists of events after %s more", lists(), refusedAgain)
	}
	w.now = w.now.Add(refusedAgain)
	w.c.Live = failing{w.client}
	if w.reconcile(); w.condition(v1alpha1.ConditionPlaced) != "False MemberLost" {
		t.Error(w.condition(v1alpha1.ConditionPlaced))
	}
}

// failing lists nothing.
type failing struct{ client.Reader }

func (failing) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return fmt.Errorf("forbidden")
}
