package preview

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestQuotas(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: list("cpu", "100m", "memory", "1Gi", "nvidia.com/gpu", "2"), Limits: list("cpu", "2", "nvidia.com/gpu", "2")}}}}}
	for name, c := range map[string]struct {
		hard, used corev1.ResourceList
		scopes     []corev1.ResourceQuotaScope
		want       []Short
	}{
		"a pod short":          {list("requests.nvidia.com/gpu", "3"), list("requests.nvidia.com/gpu", "0"), nil, []Short{{"q", "requests.nvidia.com/gpu", "4", "3"}}},
		"used by others":       {list("memory", "2Gi", "cpu", "1"), list("memory", "1Mi", "cpu", "800m"), nil, []Short{{"q", "memory", "2Gi", "2047Mi"}}},
		"just so":              {list("requests.memory", "2Gi", "limits.cpu", "4", "pods", "2", "count/pods", "2"), list(), nil, nil},
		"limits and pods":      {list("limits.cpu", "3", "pods", "1"), list(), nil, []Short{{"q", "limits.cpu", "4", "3"}, {"q", "pods", "2", "1"}}},
		"full beyond":          {list("pods", "1"), list("pods", "3"), nil, []Short{{"q", "pods", "2", "-2"}}},
		"of other objects":     {list("services", "0", "requests.storage", "0"), list(), nil, nil},
		"for some pods":        {list("pods", "1"), list(), []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort}, []Short{{Quota: "q"}}},
		"not yet counted":      {nil, nil, nil, nil},
		"what is not asked of": {list("requests.amd.com/gpu", "0"), list(), nil, nil},
	} {
		quota := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Status: corev1.ResourceQuotaStatus{Hard: c.hard, Used: c.used}}
		quota.Spec.Scopes = c.scopes
		if got := Quotas([]corev1.ResourceQuota{quota}, pod, 2); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestWhatAQuotaRefusesDoesNotFit: pods that a quota refuses do not fit, whatever the scheduler's answer is.
func TestWhatAQuotaRefusesDoesNotFit(t *testing.T) {
	where := &v1alpha1.PreviewResponse{Placement: v1alpha1.PlacementStatus{Placed: true}}
	for name, c := range map[string]struct {
		p           Preview
		fits, known bool
	}{
		"a quota":          {Preview{Where: where, Quotas: []Short{{Quota: "q", Resource: "pods"}}}, false, true},
		"a quota alone":    {Preview{Quotas: []Short{{Quota: "q", Resource: "pods"}}}, false, true},
		"one not compared": {Preview{Where: where, Quotas: []Short{{Quota: "q"}}}, true, true},
	} {
		if fits, known := c.p.Fits(); fits != c.fits || known != c.known {
			t.Errorf("%s: %v, %v", name, fits, known)
		}
	}
}
