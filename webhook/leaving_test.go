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

// TestLeavingPodsAreHidden: a pod is being deleted whose job's controller would count that as a failure. First it loses the label by which
// that controller finds it. Nothing is refused, and no other pod is changed.
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
		"of another kind":             {deletion, func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.OwnerReferences[0].APIVersion = "Job", "batch/v1" }, false},
		"deleted, a budget by label":  {deletion, func(p *corev1.Pod) { p.Labels["budget"] = "operator" }, true},
		"evicted, a budget by label":  {evicted, func(p *corev1.Pod) { p.Labels["budget"] = "operator" }, false},
		"evicted, a budget of others": {evicted, func(p *corev1.Pod) { p.Labels["budget"] = "ours" }, true},
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
			Labels: map[string]string{
				v1alpha1.LabelGang:                    "g",
				kinds.FoundBy:                         "g",
				"training.kubeflow.org/replica-type":  "worker",
				"training.kubeflow.org/replica-index": "0",
			},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "g", UID: "job", Controller: ptr.To(true)},
			},
		}}
		pod.Status.Phase = corev1.PodRunning
		if c.change != nil {
			c.change(pod)
		}
		had := len(pod.Labels)
		budget := func(name string, match map[string]string) *policyv1.PodDisruptionBudget {
			return &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: match}},
			}
		}
		api := fake.NewClientBuilder().WithObjects(
			pod,
			budget("by-operator", map[string]string{"budget": "operator", kinds.FoundBy: "g"}),
			budget("by-ours", map[string]string{"budget": "ours", v1alpha1.LabelGang: "g"}),
		).Build()
		if c.request.Namespace = "ns"; c.request.Operation == admissionv1.Delete {
			c.request.OldObject = raw(t, pod) // the request of a deletion of a collection has no name
		} else {
			c.request.Name = "p"
		}
		if a := Leaving(api, api).Handle(t.Context(), admission.Request{AdmissionRequest: c.request}); !a.Allowed || len(a.Patches) > 0 {
			t.Errorf("%s: %+v", name, a)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		if _, found := pod.Labels[kinds.FoundBy]; found == c.hidden || !c.hidden && len(pod.Labels) != had {
			t.Errorf("%s: labels %v", name, pod.Labels)
		}
	}
	gone := evicted
	gone.Namespace, gone.Name = "ns", "p"
	none := fake.NewClientBuilder().Build()
	if a := Leaving(none, none).Handle(t.Context(), admission.Request{AdmissionRequest: gone}); !a.Allowed {
		t.Errorf("a pod that is not there: %+v", a)
	}
}
