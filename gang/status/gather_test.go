package status

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/observe"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// A replaced pod is not a member. If its eviction is refused, the status still says so.
func TestNoteOfARefusedEviction(t *testing.T) {
	pod := func(name, refused string, replaced bool) corev1.Pod {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		}
		if refused != "" {
			p.Annotations[v1alpha1.AnnotationEvictionRefused] = refused
		}
		if replaced {
			p.Labels[v1alpha1.LabelReplaced] = "true"
		}
		return p
	}
	got := GatherJobGang(&v1alpha1.Gang{}, Job{}, []corev1.Pod{
		pod("goes", "", true), pod("stays", "budget keep needs 2 healthy pods", true), pod("member", "left over", false),
	})
	if want := []string{"pod stays on node n1 was replaced but its eviction is refused: budget keep needs 2 healthy pods"}; !slices.Equal(got.Notes, want) {
		t.Errorf("notes %q, want %q", got.Notes, want)
	}
}

// TestSlotsWithoutPodsTakeNothing: the Gang of a large Job with few pods lists only these pods, and the number that must exist.
func TestSlotsWithoutPodsTakeNothing(t *testing.T) {
	job := Job{UID: "job", Admitted: settings.Job{Members: v1alpha1.MaxMembers}}
	var pods []corev1.Pod
	for _, slot := range []int{7, 4321} {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", slot), Annotations: map[string]string{
			batchv1.JobCompletionIndexAnnotation: fmt.Sprint(slot), v1alpha1.AnnotationGangSlot: fmt.Sprint(slot),
			v1alpha1.AnnotationInjection: `{"ranks":8}`},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "batch/v1", Kind: "Job", UID: "job", Controller: ptr.To(true)},
			}}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{
			{Name: "train", Env: []corev1.EnvVar{{Name: membership.JobVariable, Value: "job"}}}}}})
	}
	run := &v1alpha1.RunStatus{
		Generation: 1,
		State:      v1alpha1.RunForming,
		Progress:   v1alpha1.Progress{Attached: []int32{-1, 8, 4321, 4999, 1 << 30}},
	}
	for name, got := range map[string]JobGang{
		"acted on": GatherJobGang(&v1alpha1.Gang{Status: v1alpha1.GangStatus{Run: run}}, job, pods),
		"watched":  GatherObserved(job, pods, nil, observe.Figures{}).JobGang,
	} {
		ranks, attached := int32(8), true
		if name == "watched" {
			ranks, attached = 0, false
		}
		want := []v1alpha1.MemberStatus{
			{Slot: 7, Pod: "p-7", Node: "n", Ranks: ranks},
			{Slot: 4321, Pod: "p-4321", Node: "n", Ranks: ranks, Attached: attached},
		}
		if !slices.Equal(got.Members, want) {
			t.Errorf("%s: %d members are listed, want two: %+v", name, len(got.Members), got.Members[:min(3, len(got.Members))])
		}
		if s := Assess(got.View); s.Nodes != "2/5000" {
			t.Errorf("%s: %s pods are on nodes", name, s.Nodes)
		}
	}
}
