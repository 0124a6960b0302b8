package webhook

import (
	"context"
	"errors"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestMembersThatTheirNodesEndAreReleased: only a member is released, and only one that its node ends. No report is refused.
func TestMembersThatTheirNodesEndAreReleased(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(request *admissionv1.AdmissionRequest, before, now *corev1.Pod)
		released bool
	}{
		"not admitted": {nil, true},
		"it ran":       {func(_ *admissionv1.AdmissionRequest, before, _ *corev1.Pod) { before.Status.Phase = corev1.PodRunning }, true},
		"evicted":      {func(_ *admissionv1.AdmissionRequest, _, now *corev1.Pod) { now.Status.Reason = "Evicted" }, true},
		"over its own limit": {func(_ *admissionv1.AdmissionRequest, _, now *corev1.Pod) {
			now.Status.Reason, now.Status.ContainerStatuses = "Evicted", []corev1.ContainerStatus{{Name: "c"}}
		}, false},
		"failed by itself": {func(_ *admissionv1.AdmissionRequest, _, now *corev1.Pod) { now.Status.Reason = "" }, false},
		"no node would":    {func(_ *admissionv1.AdmissionRequest, _, now *corev1.Pod) { now.Status.Reason = "SysctlForbidden" }, false},
		"it runs":          {func(_ *admissionv1.AdmissionRequest, _, now *corev1.Pod) { now.Status.Phase = corev1.PodRunning }, false},
		"reported already": {func(_ *admissionv1.AdmissionRequest, before, _ *corev1.Pod) { before.Status.Phase = corev1.PodFailed }, false},
		"of no gang":       {func(_ *admissionv1.AdmissionRequest, before, _ *corev1.Pod) { before.Labels = nil }, false},
		"released already": {func(_ *admissionv1.AdmissionRequest, before, _ *corev1.Pod) {
			before.Labels[v1alpha1.LabelReplaced] = "true"
		}, false},
		"dry run": {func(r *admissionv1.AdmissionRequest, _, _ *corev1.Pod) { r.DryRun = ptr.To(true) }, false},
	} {
		before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{v1alpha1.LabelGang: "g"}}}
		before.Status.Phase = corev1.PodPending
		now := before.DeepCopy()
		now.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected"}
		now.Annotations, now.Spec.NodeName = map[string]string{v1alpha1.AnnotationEndedByNode: "forged"}, "forged"
		request := admissionv1.AdmissionRequest{Operation: admissionv1.Update, SubResource: "status"}
		if c.change != nil {
			c.change(&request, before, now)
		}
		request.OldObject, request.Object = raw(t, before), raw(t, now)
		var got []string
		a := Ended(func(_ context.Context, p *corev1.Pod) error {
			if p.Annotations != nil || p.Spec.NodeName != "" {
				t.Errorf("%s: released is what the report claims, not the stored pod", name)
			}
			got = append(got, p.Status.Reason)
			return errors.New("which is only logged")
		}).Handle(t.Context(), admission.Request{AdmissionRequest: request})
		if !a.Allowed || len(a.Patches) > 0 || len(got) > 0 != c.released {
			t.Errorf("%s: released for %q, %+v", name, got, a)
		}
	}
	broken := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte("{")}}}
	if a := Ended(nil).Handle(t.Context(), broken); !a.Allowed {
		t.Errorf("a pod that is no JSON: %+v", a)
	}
}
