package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/kinds"
)

// rejected is the report that a kubelet did not admit a pod.
func rejected(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: Node didn't have enough resource: cpu"}
	return p
}

// TestRejectedPodsAreReleased: a pod that its kubelet does not admit leaves its job before the job's controller sees it fail, as that kind
// releases pods. Its job and its Gang have the reason.
func TestRejectedPodsAreReleased(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: key.Job}}
	cases := map[kinds.Kind][]client.Object{kinds.BatchJob{}: {g, job, on(member("train-worker-1", 1, "n1"))}}
	for _, kind := range others {
		g, obj := ofKind(kind)
		cases[kind] = []client.Object{g, obj, podOf(kind, 1, "uid-old"), child()}
	}
	left := map[kinds.Kind][]string{
		kinds.BatchJob{}:   {"batch.kubernetes.io/controller-uid", "controller-uid"},
		kinds.JobSet{}:     {"app", "batch.kubernetes.io/controller-uid", "controller-uid"},
		kinds.PyTorchJob{}: {"training.kubeflow.org/job-name"},
	}
	for kind, all := range cases {
		b := newBench(t, all...)
		if err := b.ReleaseEnded(t.Context(), rejected(b.pod(t, "train-worker-1"))); err != nil {
			t.Fatal(err)
		}
		after := b.pod(t, "train-worker-1")
		if after.Labels[v1alpha1.LabelReplaced] != "true" || after.Labels[v1alpha1.LabelGang] != "train" ||
			after.Annotations[v1alpha1.AnnotationEndedByNode] != "OutOfcpu" {
			t.Errorf("%T: labels %v, annotations %v", kind, after.Labels, after.Annotations)
		}
		for _, label := range left[kind] {
			if _, is := after.Labels[label]; is {
				t.Errorf("%T: label %s is left", kind, label)
			}
		}
		if _, is := kind.(kinds.VolcanoJob); is && after.Annotations["volcano.sh/job-version"] != "-1" {
			t.Errorf("annotations %v", after.Annotations)
		}
		if e := b.event(t); !strings.Contains(e, "EndedByNode node n1 ended pod train-worker-1 of slot 1 (OutOfcpu: Pod was rejected") {
			t.Errorf("%T: event %q", kind, e)
		}
	}
}

// TestOthersAreNotReleased: a pod of another job, or one that is being deleted, stays as it is.
func TestOthersAreNotReleased(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"made for no job": func(p *corev1.Pod) { p.Spec.Containers = nil },
		"without a slot":  func(p *corev1.Pod) { p.Annotations = nil },
		"being deleted":   deleted,
		"orphaned":        func(p *corev1.Pod) { p.OwnerReferences = nil },
		"of another job":  func(p *corev1.Pod) { p.Spec.Containers = madeFor("another job") },
	} {
		g, job := objects(corev1.RestartPolicyNever, 0)
		p := on(member("b", 1, "n2", change))
		b := newBench(t, g, job, p)
		if err := b.ReleaseEnded(t.Context(), rejected(p)); err != nil || len(b.patches) > 0 {
			t.Errorf("%s: %v, %q", name, err, b.patches)
		}
	}
}

// TestReleasesOfASlotAreBounded: if every node ends the pods of a slot, the job's own policy decides. Other slots, later pods and pods that
// were released before are released. What is old is forgotten.
func TestReleasesOfASlotAreBounded(t *testing.T) {
	b := newBench(t)
	end := func(minute int, slot elastic.Slot, pod string) bool {
		at, now := slotKey{key, slot}, noon.Add(time.Duration(minute)*time.Minute)
		if !b.mayEnd(at, types.UID(pod), now) {
			return false
		}
		b.noteEnded(at, types.UID(pod), now)
		return true
	}
	for i := range mostEnded {
		for range 3 { // each replica, and each attempt
			if !end(i/2, 1, fmt.Sprint(i)) {
				t.Errorf("pod %d is not released", i)
			}
		}
	}
	if end(5, 1, "one more") {
		t.Error("one more pod of the slot is released")
	}
	if !end(5, 2, "other") {
		t.Error("a pod of another slot is not released")
	}
	if !end(10, 1, "a") || !end(10, 1, "b") || end(10, 1, "c") {
		t.Error("two releases are older than the window, so two more are made")
	}
	if !end(60, 3, "later") || len(b.ended) != 1 {
		t.Errorf("kept: %v", b.ended)
	}
}

// TestFailedReleasesDoNotCount: a pod that could not be released is not one of those that were.
func TestFailedReleasesDoNotCount(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p := on(member("train-worker-1", 1, "n1"))
	b := newBench(t, g, job, p)
	b.Client = refusing{b.Client}
	if err := b.ReleaseEnded(t.Context(), rejected(p)); err == nil || len(b.ended) != 0 {
		t.Errorf("counted after %v: %v", err, b.ended)
	}
}

// refusing refuses patches.
type refusing struct{ client.Client }

func (refusing) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errors.New("refused")
}
