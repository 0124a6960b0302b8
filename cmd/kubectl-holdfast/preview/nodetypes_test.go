package preview

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// node returns a node with this memory and this number of GPUs.
func node(name, kind, memory, gpus string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "train"}}}
	if kind != "" {
		n.Labels[corev1.LabelInstanceTypeStable] = kind
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), "nvidia.com/gpu": resource.MustParse(gpus)}
	return n
}

// TestNodeTypes: three copies of 40Gi for eight ranks fit on machines that have the memory and the GPUs. Pods of others are not counted.
func TestNodeTypes(t *testing.T) {
	other := node("n9", "big", "4Ti", "8")
	other.Labels["pool"] = "serve"
	a := Answers{Job: &batchv1.Job{}, Pod: &corev1.Pod{}, Nodes: []corev1.Node{
		node(
			"n1",
			"big",
			"2Ti",
			"8",
		), node("n2", "big", "2040Gi", "8"), node("n3", "small", "900Gi", "8"), node("n4", "", "1500Gi", "4"), node("n5", "", "1000Gi", "16"), node("n6", "", "1000Gi", "16"), other}}
	a.Pod.Spec.NodeSelector = map[string]string{"pool": "train"}
	a.Pod.Spec.Containers = []corev1.Container{
		{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}},
	}
	p := Preview{Injection: &v1alpha1.Injection{StateBytes: 40 << 30, Ranks: 8}}
	check := func(needed string, want ...NodeType) {
		t.Helper()
		s, q := p.state(a), resource.MustParse(needed)
		if s.Total != 960<<30 || s.Needed != q.Value() || !slices.Equal(s.NodeTypes, want) {
			t.Errorf("%s: %+v\nwant %+v", needed, s, want)
		}
	}
	check("960Gi", NodeType{"big", 2, 2040 << 30, "8 nvidia.com/gpu", 1, ""}, NodeType{"", 2, 1000 << 30, "16 nvidia.com/gpu", 1, ""},
		NodeType{"", 1, 1500 << 30, "4 nvidia.com/gpu", 0, "too little nvidia.com/gpu"}, NodeType{"small", 1, 900 << 30, "8 nvidia.com/gpu", 0, "too little memory"})
	if got, want := p.state(a).Otherwise, (Otherwise{Slots: 2, Needed: 640 << 30, Fits: 3}); got != want {
		t.Errorf("with two slots: %+v, want %+v", got, want)
	}
	// A pod requests more than its state.
	a.Pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1600Gi")}
	check("1600Gi", NodeType{"big", 2, 2040 << 30, "8 nvidia.com/gpu", 1, ""}, NodeType{"", 1, 1500 << 30, "4 nvidia.com/gpu", 0, "too little memory, nvidia.com/gpu"},
		NodeType{"", 2, 1000 << 30, "16 nvidia.com/gpu", 0, "too little memory"}, NodeType{"small", 1, 900 << 30, "8 nvidia.com/gpu", 0, "too little memory"})
	p.Injection.Slots = 2
	if s := p.state(a); s.Slots != 2 || s.Total != 640<<30 {
		t.Errorf("two slots: %+v", s)
	}
	if got, want := p.state(a).Otherwise, (Otherwise{Slots: 3, Needed: 1920 << 30, Fits: 1}); got != want {
		t.Errorf("with three slots after all: %+v, want %+v", got, want)
	}
	if p.Injection.StateBytes = 0; p.state(a) != nil {
		t.Error("a job without state has some")
	}
}
