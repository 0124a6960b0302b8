package membership

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestOwningJob(t *testing.T) {
	for name, c := range map[string]struct {
		ref  metav1.OwnerReference
		want bool
	}{
		"its Job":           {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Controller: ptr.To(true)}, true},
		"not in control":    {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job"}, false},
		"another's Job":     {metav1.OwnerReference{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Controller: ptr.To(true)}, false},
		"some other object": {metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Controller: ptr.To(true)}, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{c.ref}}}
		if got := OwningJob(pod) != nil; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestGangOfPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if _, ok := GangOf(pod); ok {
		t.Error("a pod without the label belongs to a gang")
	}
	pod.Labels = map[string]string{v1alpha1.LabelGang: "g", "batch.kubernetes.io/job-completion-index": "3"}
	if key, ok := GangOf(pod); !ok || key.String() != "ns/g" {
		t.Errorf("gang %v, %v", key, ok)
	}
	if slot, ok := GangSlot(pod); !ok || slot != 3 {
		t.Errorf("slot %d, %v", slot, ok)
	}
	pod.Labels["batch.kubernetes.io/controller-uid"] = "a Job that is gone"
	if _, ok := GangOf(pod); ok {
		t.Error("a pod that its Job left behind belongs to a gang")
	}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "g", Controller: ptr.To(true)}}
	if _, ok := GangOf(pod); !ok {
		t.Error("a pod of a Job belongs to no gang")
	}
	pod.Labels[v1alpha1.LabelReplaced] = "true"
	if _, ok := GangOf(pod); ok {
		t.Error("a pod that was replaced belongs to a gang")
	}
}
