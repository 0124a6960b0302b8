package webhook

import (
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// TestLeavingPodsAreHidden: before a pod is deleted that its job's controller would count as failed then, it loses the label by which that
// finds it. Nothing is refused, and no other pod is touched.
func TestLeavingPodsAreHidden(t *testing.T) {
	eviction := func(o *metav1.DeleteOptions) runtime.RawExtension {
		text, err := json.Marshal(policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}, DeleteOptions: o})
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: text}
	}
	deletion := admissionv1.AdmissionRequest{Operation: admissionv1.Delete}
	evicted := admissionv1.AdmissionRequest{Operation: admissionv1.Create, SubResource: "eviction", Object: eviction(nil)}
	dry, dryEviction := deletion, evicted
	dry.DryRun = ptr.To(true)
	dryEviction.Object = eviction(&metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	for name, c := range map[string]struct {
		request admissionv1.AdmissionRequest
		change  func(*corev1.Pod)
		hidden  bool
	}{
		"deleted":                     {deletion, nil, true},
		"evicted":                     {evicted, nil, true},
		"deleted, dry run":            {dry, nil, false},
		"evicted, dry run":            {dryEviction, nil, false},
		"of no gang":                  {deletion, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelGang) }, false},
		"released already":            {deletion, func(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" }, false},
		"it has ended":                {evicted, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"an eviction that is no JSON": {admissionv1.AdmissionRequest{Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte("{")}}, nil, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      "p",
			UID:       "u",
			Labels:    map[string]string{v1alpha1.LabelGang: "g", kinds.FoundBy: "g", "a": "b"},
		}}
		pod.Status.Phase = corev1.PodRunning
		if c.change != nil {
			c.change(pod)
		}
		had := len(pod.Labels)
		api := fake.NewClientBuilder().WithObjects(pod).Build()
		c.request.Namespace, c.request.Name = "ns", "p"
		if a := Leaving(api).Handle(t.Context(), admission.Request{AdmissionRequest: c.request}); !a.Allowed || len(a.Patches) > 0 {
			t.Errorf("%s: %+v", name, a)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		if _, found := pod.Labels[kinds.FoundBy]; found == c.hidden || !c.hidden && len(pod.Labels) != had {
			t.Errorf("%s: labels %v", name, pod.Labels)
		}
	}
	gone := admissionv1.AdmissionRequest{Operation: admissionv1.Delete, Namespace: "ns", Name: "p"}
	if a := Leaving(fake.NewClientBuilder().Build()).Handle(t.Context(), admission.Request{AdmissionRequest: gone}); !a.Allowed {
		t.Errorf("a pod that is not there: %+v", a)
	}
}
