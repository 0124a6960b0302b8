package membership_test

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// TestHolders: of two pods in a slot the one holds it that exists, or else the newer one, in whichever order they are listed.
func TestHolders(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	later := metav1.NewTime(now.Add(time.Second))
	pod := func(uid string, made metav1.Time, phase corev1.PodPhase, change ...func(*corev1.Pod)) corev1.Pod {
		yes := true
		p := corev1.Pod{Status: corev1.PodStatus{Phase: phase}, ObjectMeta: metav1.ObjectMeta{
			UID:               types.UID(uid),
			CreationTimestamp: made,
			Annotations:       map[string]string{v1alpha1.AnnotationGangSlot: "1", batchv1.JobCompletionIndexAnnotation: "0"},
			Labels:            map[string]string{},
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job", Controller: &yes}},
		}}
		p.Spec.Containers = []corev1.Container{{Name: "side"}, {Name: "train", Env: []corev1.EnvVar{{Name: membership.JobVariable, Value: "job"}}}}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &later }
	replaced := func(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" }
	left := func(p *corev1.Pod) { p.OwnerReferences = nil }
	others := func(p *corev1.Pod) { p.Spec.Containers[1].Env[0].Value = "another" }
	for name, tt := range map[string]struct {
		a, b corev1.Pod
		want string
	}{
		"the newer":                       {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodPending), "b"},
		"not one that is being deleted":   {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodRunning, deleted), "a"},
		"not one that failed":             {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodFailed), "a"},
		"nor one that succeeded":          {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodSucceeded), "a"},
		"the newer of two that are over":  {pod("a", now, corev1.PodSucceeded), pod("b", later, corev1.PodRunning, deleted), "b"},
		"of one second, always the same":  {pod("a", now, corev1.PodRunning), pod("b", now, corev1.PodRunning), "b"},
		"not one that is replaced":        {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodRunning, replaced), "a"},
		"not one made for another Job":    {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodRunning, others), "a"},
		"not one that its Job left":       {pod("a", now, corev1.PodRunning), pod("b", later, corev1.PodRunning, left), "a"},
		"one that succeeded, and no more": {pod("a", now, corev1.PodSucceeded), pod("b", later, corev1.PodRunning, others), "a"},
	} {
		for _, pods := range [][]corev1.Pod{{tt.a, tt.b}, {tt.b, tt.a}} {
			got := membership.Holders("job", 2, pods)
			if got[0] != nil || got[1] == nil || string(got[1].UID) != tt.want {
				t.Errorf("%s: %v hold the slots, want %s in the second", name, got, tt.want)
			}
		}
	}
	if got := membership.Holders("job", 1, []corev1.Pod{pod("a", now, corev1.PodRunning)}); got[0] != nil {
		t.Errorf("slot 1 of a gang of one is held by %s", got[0].UID)
	}
}
