package membership

import (
	"maps"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
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
	pod.Labels = map[string]string{v1alpha1.LabelGang: "g"}
	if key, ok := GangOf(pod); !ok || key.String() != "ns/g" {
		t.Errorf("gang %v, %v", key, ok)
	}
	pod.Spec.Containers = []corev1.Container{{Name: "side"}, {Name: "train", Env: []corev1.EnvVar{{Name: JobVariable, Value: "u"}}}}
	if _, ok := GangOf(pod); ok || JobUID(pod) != "u" {
		t.Errorf("a pod that its job %q left behind belongs to a gang", JobUID(pod))
	}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Anything", Name: "other", Controller: ptr.To(true)}}
	if _, ok := GangOf(pod); !ok {
		t.Error("a pod that is controlled belongs to no gang")
	}
	pod.Labels[v1alpha1.LabelReplaced] = "true"
	if _, ok := GangOf(pod); ok {
		t.Error("a pod that was replaced belongs to a gang")
	}
}

// TestMembersAreReadByTheirStamp: what controllers, or users who imitate them, write on pods gives a pod no slot.
func TestMembersAreReadByTheirStamp(t *testing.T) {
	theirs := map[string]string{batchv1.JobCompletionIndexAnnotation: "3", "apps.kubernetes.io/pod-index": "3", volcanoIndex: "3", volcanoTask: "master"}
	pod := groupPod(maps.Clone(theirs), maps.Clone(theirs), "")
	if n, unique := GroupSlot(pod); n != 3 || unique {
		t.Errorf("a pod of no gang has index %d, its own: %t", n, unique)
	}
	pod.Labels[v1alpha1.LabelGang] = "g"
	if n, ok := GangSlot(pod); ok || GangRole(pod) != "" || JobUID(pod) != "" {
		t.Errorf("slot %d %t, role %q, job %q without a stamp", n, ok, GangRole(pod), JobUID(pod))
	}
	if _, err := GangSize(pod); err == nil || !strings.Contains(err.Error(), "not made through the webhook") {
		t.Errorf("a size without a stamp: %v", err)
	}
	labels, annotations := Stamp{Gang: "g", Size: "5", Role: "worker", Slot: "4"}.Keys()
	maps.Copy(pod.Labels, labels)
	maps.Copy(pod.Annotations, annotations)
	n, ok := GangSlot(pod)
	size, err := GangSize(pod)
	if of, unique := GroupSlot(pod); !ok || n != 4 || of != 4 || !unique || size != 5 || err != nil || GangRole(pod) != "worker" {
		t.Errorf("slot %d %d %t %t, size %d %v, role %q", n, of, ok, unique, size, err, GangRole(pod))
	}
	for _, value := range []string{"", "-1", "x", "99999999999999999999"} {
		pod.Annotations[v1alpha1.AnnotationGangSlot] = value
		if n, ok := GangSlot(pod); ok {
			t.Errorf("slot %q is %d", value, n)
		}
	}
	for _, value := range []string{"", "0", "-1", "x", "99999999999999999999"} {
		pod.Annotations[v1alpha1.AnnotationGangSize] = value
		if size, err := GangSize(pod); err == nil {
			t.Errorf("size %q is %d", value, size)
		}
	}
}

// TestGangMin: a gang is elastic only if its stamp is a number of pods below its size.
func TestGangMin(t *testing.T) {
	pod := groupPod(nil, map[string]string{}, "")
	if n := GangMin(pod, 4); n != 4 {
		t.Errorf("without a stamp: %d", n)
	}
	for value, want := range map[string]int{"1": 1, "3": 3, "4": 4, "5": 4, "0": 4, "-1": 4, "": 4, "x": 4, "99999999999999999999": 4} {
		pod.Annotations[v1alpha1.AnnotationGangMin] = value
		if n := GangMin(pod, 4); n != want {
			t.Errorf("stamp %q: %d, want %d", value, n, want)
		}
	}
}
