package controller

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/budget"
)

func TestBudgetNode(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "z", "rack": "r"}, Annotations: map[string]string{
			v1alpha1.AnnotationHealth: `{"action":"Evict","cause":"GPULost","message":"gone","since":"2026-01-02T03:04:05.000006Z"}`}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("4")}},
	}
	want := budget.Node{Name: "n1", Domain: "rack=r", GPUs: 8,
		Verdict: budget.Verdict{Action: nodehealth.Evict, Cause: "GPULost", Message: "gone", Since: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}}
	got, err := budgetNode(node, []string{"none", "rack", "zone"})
	got.Verdict.Since = got.Verdict.Since.UTC()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestOutageRoundTrip: a decision that was written to a Node is read back unchanged. Writing it again changes nothing, and removing it
// leaves nothing.
func TestOutageRoundTrip(t *testing.T) {
	theirs := []corev1.Taint{
		{Key: "a", Effect: corev1.TaintEffectNoExecute},
		{Key: v1alpha1.TaintUnhealthy, Value: "x", Effect: corev1.TaintEffectNoSchedule},
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, o := range []budget.Outage{
		{Outcome: budget.Evict, Cause: "GPULost", Message: "gone", Since: at},
		{Outcome: budget.Evict, Cause: "GPULost", Since: at, Idle: true},
		{Outcome: budget.Hold, Cause: budget.CauseUnreachable, Reason: budget.DomainBudget, Since: at, Dead: true},
		{Outcome: budget.Exclude, Cause: "a cause, with what no label takes: " + strings.Repeat("x", 80), Since: at},
	} {
		node := &corev1.Node{
			Spec: corev1.NodeSpec{Taints: append([]corev1.Taint{{Key: v1alpha1.TaintOutage, Effect: corev1.TaintEffectNoExecute}}, theirs...)},
		}
		for i, want := range []bool{true, false} {
			if changed, err := putOutage(node, o); err != nil || changed != want {
				t.Errorf("put %d of %+v: %v, %v", i, o, changed, err)
			}
		}
		if got, err := outageOf(node); err != nil || got != o {
			t.Errorf("read %+v, %v, want %+v", got, err, o)
		}
		if n := len(node.Spec.Taints); n != 3 || len(node.Spec.Taints[2].Value) > 63 ||
			node.Spec.Taints[2].Effect != corev1.TaintEffectNoSchedule {
			t.Errorf("taints %v", node.Spec.Taints)
		}
		if changed, err := putOutage(node, budget.Outage{}); err != nil || !changed || hasOutage(node) ||
			!reflect.DeepEqual(node.Spec.Taints, theirs) {
			t.Errorf("taken away: %v, %v, taints %v", changed, err, node.Spec.Taints)
		}
	}
}

// TestUnreadableWords: the error names the path, and the present decision stays.
func TestUnreadableWords(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		v1alpha1.AnnotationHealth: "{", v1alpha1.AnnotationOutage: `{"decision":"Evict","cause":"GPULost","since":"2026-01-02T03:04:05.000006Z"}`}}}
	n, err := budgetNode(node, nil)
	if err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationHealth) || n.Verdict.Action != nodehealth.Evict ||
		n.Verdict.Cause != "GPULost" {
		t.Errorf("%+v, %v", n.Verdict, err)
	}
	node.Annotations[v1alpha1.AnnotationOutage] = `{"decision":"Maybe"}`
	if _, err := outageOf(node); err == nil || !strings.Contains(err.Error(), "decision") {
		t.Errorf("%v", err)
	}
}

// TestRequest: a Node's request is read as it was written; an incomplete one leaves the present decision.
func TestRequest(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
		v1alpha1.AnnotationEvict: `{"by":"ada","reason":"a fan","at":"2026-01-02T03:04:05.000000Z","until":"2026-01-03T03:04:05.000000Z","now":true,` +
			`"pod":{"namespace":"team-a","name":"train-0","uid":"u-1"}}`}}}
	n, err := budgetNode(node, nil)
	r := n.Request
	if err != nil || !r.Now || r.Pod != "u-1" || r.Until.Sub(r.At) != 24*time.Hour ||
		r.Message != "requested by ada until 2026-01-03T03:04:05Z for pod team-a/train-0: a fan" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := putOutage(node, budget.Outage{Outcome: budget.Evict, Cause: budget.CauseByHand, Since: r.At, Pod: "u-1"}); err != nil {
		t.Fatal(err)
	}
	node.Annotations[v1alpha1.AnnotationEvict] = `{"reason":"a fan"}`
	if n, err = budgetNode(node, nil); err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationEvict) ||
		n.Request.Pod != "u-1" || n.Request.At.IsZero() {
		t.Errorf("incomplete: %+v, %v", n.Request, err)
	}
	delete(node.Annotations, v1alpha1.AnnotationEvict)
	if n, err = budgetNode(node, nil); err != nil || !n.Request.At.IsZero() {
		t.Errorf("none: %+v, %v", n.Request, err)
	}
}

func TestGangPodOn(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelGang: "g"}}, Spec: corev1.PodSpec{NodeName: "n1"}}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"member":   {pod(func(*corev1.Pod) {}), true},
		"replaced": {pod(func(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" }), false},
		"ended":    {pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"unbound":  {pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), false},
		"another":  {pod(func(p *corev1.Pod) { p.Labels = nil }), false},
	} {
		if node, ok := gangPodOn(c.pod); ok != c.want || ok && node != "n1" {
			t.Errorf("%s: %q, %v", name, node, ok)
		}
	}
}

// TestIsGPU: nodes with GPUs of any maker, also divided or shared ones, count. Nodes with other extended resources do not.
func TestIsGPU(t *testing.T) {
	for name, want := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-1g.5gb": true, "amd.com/gpu": true, "gpu.intel.com/xe": true, "habana.ai/gaudi": true,
		"huawei.com/Ascend910": true, "aws.amazon.com/neuroncore": true, "google.com/tpu": true,
		"cpu": false, "gpu": false, "rdma/hca_shared_devices": false, "devices.kubevirt.io/kvm": false, "vpc.amazonaws.com/efa": false, "nvidia.com/gpumem": false,
	} {
		if got := isGPU(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
