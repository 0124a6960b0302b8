package webhook

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func ranged(items ...corev1.LimitRangeItem) Limits {
	return Limits{Ranges: []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "lr"}, Spec: corev1.LimitRangeSpec{Limits: items}}}}
}

func quota(used corev1.ResourceList, scopes []corev1.ResourceQuotaScope, hard ...string) Limits {
	return Limits{
		Quotas: []corev1.ResourceQuota{
			{
				ObjectMeta: metav1.ObjectMeta{Name: "q"},
				Spec:       corev1.ResourceQuotaSpec{Hard: list(hard...), Scopes: scopes},
				Status:     corev1.ResourceQuotaStatus{Used: used},
			},
		},
	}
}

// TestPodsThatTheNamespaceRefuses: each of two pods requests 1 CPU, 2 GPUs and 1 GiB, to which 962 MiB are added.
func TestPodsThatTheNamespaceRefuses(t *testing.T) {
	of := func(kind corev1.LimitType, min, max, ratio corev1.ResourceList) Limits {
		return ranged(corev1.LimitRangeItem{Type: kind, Min: min, Max: max, MaxLimitRequestRatio: ratio})
	}
	noMemory := trainer(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} })
	burst := trainer(func(c *corev1.Container) { c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100m") })
	deadline := podSpec(func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](60) })
	const memory = "spec.template.spec.containers[0].resources.limits[memory]: Invalid value: "
	for name, c := range map[string]struct {
		limits  Limits
		change  func(*batchv1.Job)
		refused string
		warned  string
	}{
		"nothing":                     {},
		"room":                        {limits: of(corev1.LimitTypeContainer, list("memory", "32Mi"), list("memory", "2Gi", "cpu", "2"), list("cpu", "2"))},
		"memory that is added":        {limits: of(corev1.LimitTypeContainer, nil, list("memory", "1536Mi"), nil), refused: memory + `"2032704Ki": LimitRange lr has a maximum of 1536Mi per Container, and holdfast adds 962Mi`},
		"less than the least":         {limits: of(corev1.LimitTypeContainer, list("cpu", "2"), nil, nil), refused: "containers[0].resources.requests[cpu]: Invalid value: \"1\": LimitRange lr has a minimum of 2 per Container"},
		"a ratio":                     {limits: of(corev1.LimitTypeContainer, nil, nil, list("cpu", "4")), change: burst, refused: "limits[cpu]: Invalid value: \"1\": LimitRange lr has a maximum ratio of limit to request of 4"},
		"a kind that is not named":    {limits: of(corev1.LimitTypeContainer, list("ephemeral-storage", "1Gi"), nil, nil), refused: "containers[0].resources.requests[ephemeral-storage]: Required value: LimitRange lr requires one for each Container"},
		"that has a default":          {limits: ranged(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: list("ephemeral-storage", "1Gi"), DefaultRequest: list("ephemeral-storage", "1Gi")})},
		"a default that is too small": {limits: ranged(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: list("memory", "1Gi"), Default: list("memory", "512Mi"), DefaultRequest: list("memory", "512Mi")}), change: noMemory, refused: memory},
		"the pod as a whole":          {limits: of(corev1.LimitTypePod, nil, list("memory", "1Gi"), nil), refused: "spec.template.spec.resources.limits[memory]: Invalid value: "},
		"claims":                      {limits: of(corev1.LimitTypePersistentVolumeClaim, list("storage", "1Gi"), nil, nil)},
		"a quota":                     {limits: quota(nil, nil, "requests.memory", "64Gi", "requests.nvidia.com/gpu", "4", "pods", "2", "services", "0")},
		"one pod is more":             {limits: quota(nil, nil, "requests.memory", "1Gi"), refused: "spec.template.spec.resources.requests[memory]: Invalid value: \"2032704Ki\": is the total request of one pod; ResourceQuota q has 1Gi of requests.memory, and holdfast adds 962Mi"},
		"one pod has more GPUs":       {limits: quota(nil, nil, "requests.nvidia.com/gpu", "1"), refused: "requests[nvidia.com/gpu]: Invalid value: \"2\": is the total request of one pod; ResourceQuota q has 1 of requests.nvidia.com/gpu"},
		"no pod at all":               {limits: quota(nil, nil, "pods", "0"), refused: "spec.parallelism: Forbidden: ResourceQuota q has 0 of pods"},
		"the gang is more":            {limits: quota(nil, nil, "limits.cpu", "1"), warned: "ResourceQuota q has 1 of limits.cpu; the 2 pods request 2, and 0 is used: the gang waits"},
		"with what is used":           {limits: quota(list("pods", "3"), nil, "pods", "4"), warned: "the 2 pods request 2, and 3 is used"},
		"a quota that must be named":  {limits: quota(nil, nil, "limits.memory", "64Gi"), change: noMemory, refused: "containers[0].resources.limits[memory]: Required value: ResourceQuota q counts limits.memory"},
		"of pods that end":            {limits: quota(nil, []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}, "pods", "0")},
		"of pods that end, it does":   {limits: quota(nil, []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}, "pods", "0"), change: deadline, refused: "spec.parallelism: Forbidden"},
		"of a scope that is not told": {limits: quota(nil, []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeCrossNamespacePodAffinity}, "pods", "0")},
	} {
		var changes []func(*batchv1.Job)
		if c.change != nil {
			changes = append(changes, c.change)
		}
		out := createJob(t.Context(), job(t, changes...), Facts{Limits: c.limits})
		text := said(out)
		if (c.refused != "") != (len(out.Errors) == 1) || !strings.Contains(text, c.refused) || !strings.Contains(text, c.warned) ||
			(c.warned != "") != strings.Contains(text, "ResourceQuota") && c.refused == "" {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := said(createJob(t.Context(), job(t), Facts{LimitsError: errors.New("away")})); text != "warning: whether the namespace's LimitRanges and quotas admit the pods is unknown: away\n" {
		t.Errorf("not read: %s", text)
	}
}

// TestInstallFits: the init container requests what LimitRanges admit, and the pod keeps its QoS class.
func TestInstallFits(t *testing.T) {
	item := corev1.LimitRangeItem{
		Type:                 corev1.LimitTypeContainer,
		Min:                  list("cpu", "750m", "memory", "128Mi"),
		Max:                  list("memory", "8Gi"),
		MaxLimitRequestRatio: list("ephemeral-storage", "1"),
	}
	disk := trainer(func(c *corev1.Container) {
		c.Resources.Requests["ephemeral-storage"], c.Resources.Limits["ephemeral-storage"] = resource.MustParse("1Gi"), resource.MustParse("1Gi")
	})
	small := ranged(
		corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: list("cpu", "1", "memory", "8Gi")},
		corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: list("memory", "4Gi", "cpu", "1")},
	)
	for name, c := range map[string]struct {
		limits Limits
		want   string
	}{"raised": {ranged(item), `{"cpu":"750m","ephemeral-storage":"256Mi","memory":"128Mi"}`}, "as it is": {small, ""}, "no limits": {Limits{}, ""}} {
		out := createJob(t.Context(), job(t, disk), Facts{Limits: c.limits})
		if got := out.Object.Spec.Template.Annotations[v1alpha1.AnnotationInstallResources]; len(out.Errors) > 0 || got != c.want {
			t.Fatalf("%s: %q, %s", name, got, said(out))
		}
		if again := createJob(t.Context(), out.Object, Facts{Limits: c.limits}); len(again.Errors) > 0 ||
			again.Object.Spec.Template.Annotations[v1alpha1.AnnotationInstallResources] != c.want {
			t.Errorf("%s, again: %s", name, said(again))
		}
		pod := MutatePod(t.Context(), podOf(out.Object), config)
		install := pod.Object.Spec.InitContainers[0].Resources
		if c.want != "" &&
			(install.Requests.Cpu().String() != "750m" || install.Limits.Memory().String() != "128Mi" || install.Limits.StorageEphemeral().String() != "256Mi") ||
			qosClass(&pod.Object.Spec) != corev1.PodQOSGuaranteed {
			t.Errorf("%s: %s, %+v", name, said(pod), install)
		}
	}
	if out := createJob(t.Context(), job(t, annotateTemplate(v1alpha1.AnnotationInstallResources, `{"cpu":"1"}`)), Facts{}); len(
		out.Errors,
	) > 0 ||
		out.Object.Spec.Template.Annotations[v1alpha1.AnnotationInstallResources] != "" {
		t.Errorf("of another namespace: %s", said(out))
	}
}

// TestLimitsAreReadForJobsThatAreOptedIn alone.
func TestLimitsAreReadForJobsThatAreOptedIn(t *testing.T) {
	for name, c := range map[string]struct {
		job  *batchv1.Job
		want int
	}{
		"opted in": {job(t), 1},
		"off":      {job(t, annotate(v1alpha1.AnnotationEnabled, "false")), 0},
		"observed": {job(t, annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve)), 0},
	} {
		asked := 0
		h := Jobs(Cluster{Limits: func(_ context.Context, namespace string) (Limits, error) {
			if asked++; namespace != "team" {
				t.Errorf("%s: asked about %q", name, namespace)
			}
			return Limits{}, nil
		}})
		req := request(admissionv1.Create, raw(t, c.job), runtime.RawExtension{})
		req.Namespace = "team"
		if r := h.Handle(t.Context(), req); !r.Allowed || asked != c.want {
			t.Errorf("%s: asked %d times; %+v", name, asked, r.Result)
		}
	}
}
