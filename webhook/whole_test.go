package webhook

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

func onVersion(minor int) Config {
	c := config
	c.Minor = minor
	return c
}

// onFailure makes the kubelet restart containers.
func onFailure(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }

// failurePolicy adds one rule for an exit code of the training container.
func failurePolicy(action batchv1.PodFailurePolicyAction, code int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: action,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}}}}}
	}
}

// TestRestartRules: a container that is killed whole is restarted in its pod, if the API server supports that and the user set no rule.
func TestRestartRules(t *testing.T) {
	own := trainer(func(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever) })
	for name, c := range map[string]struct {
		minor  int
		change func(*batchv1.Job)
		want   bool
	}{
		"1.35": {35, func(*batchv1.Job) {}, true}, "1.40": {40, func(*batchv1.Job) {}, true}, "1.34": {34, func(*batchv1.Job) {}, false},
		"not known": {0, func(*batchv1.Job) {}, false}, "restarted anyway": {35, onFailure, false}, "the user's own": {35, own, false},
	} {
		facts := Facts{Minor: c.minor}
		once := createJob(t.Context(), job(t, c.change), facts)
		out := MutatePod(t.Context(), podOf(once.Object), onVersion(c.minor))
		if len(out.Errors) > 0 {
			t.Fatalf("%s: %s", name, said(out))
		}
		if got := out.Object.Spec.Containers[0].RestartPolicyRules; (len(got) == 1) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
		if twice := MutatePod(t.Context(), out.Object, onVersion(c.minor)); len(twice.Errors) > 0 ||
			!equality.Semantic.DeepEqual(out.Object, twice.Object) {
			t.Errorf("%s: injecting twice differs: %s", name, said(twice))
		}
		// An API server that is upgraded between two calls for one pod does not change the pod.
		if later := MutatePod(t.Context(), out.Object, onVersion(34)); len(later.Errors) > 0 ||
			!equality.Semantic.DeepEqual(out.Object, later.Object) {
			t.Errorf("%s: another version undoes it: %s", name, said(later))
		}
	}
	golden.File(t, "testdata/pod.restart-rules.yaml", asYAML(t, MutatePod(t.Context(), podOf(admitted(t, job(t))), onVersion(35)).Object))
}

// TestIgnoreKills: whatever the versions of the API server and the kubelets are, only failures of the training count against the Job.
func TestIgnoreKills(t *testing.T) {
	named := annotate(corev1.LastAppliedConfigAnnotation, `{"spec":{"podReplacementPolicy":"TerminatingOrFailed"}}`)
	other := func(j *batchv1.Job) {
		j.Spec.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
		named(j)
	}
	for name, c := range map[string]struct {
		minor  int
		change func(*batchv1.Job)
		want   bool
	}{
		"1.34": {34, func(*batchv1.Job) {}, true}, "1.35": {35, func(*batchv1.Job) {}, true}, "not known": {0, func(*batchv1.Job) {}, true},
		"restarted anyway": {34, onFailure, false}, "the user's own": {34, failurePolicy(batchv1.PodFailurePolicyActionCount, 3), false}, "counted while it ends": {34, other, false},
		"observed": {34, annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve), false},
	} {
		in := job(t, c.change)
		out := createJob(t.Context(), in, Facts{Minor: c.minor})
		if len(out.Errors) > 0 {
			t.Fatalf("%s: %s", name, said(out))
		}
		if got := out.Object.Spec.PodFailurePolicy; !equality.Semantic.DeepEqual(got, in.Spec.PodFailurePolicy) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
		if twice := createJob(t.Context(), out.Object, Facts{Minor: c.minor}); len(twice.Errors) > 0 ||
			!equality.Semantic.DeepEqual(out.Object, twice.Object) {
			t.Errorf("%s: the second call differs: %s", name, said(twice))
		}
	}
}

// TestIgnoreKillsAtCreationAlone: the API server accepts no change of a Job's failure policy, not even for a suspended Job.
func TestIgnoreKillsAtCreationAlone(t *testing.T) {
	waits := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
	plain := func(j *batchv1.Job) { j.Annotations = nil }
	own := failurePolicy(batchv1.PodFailurePolicyActionCount, 3)
	created := createJob(t.Context(), job(t, waits), Facts{Minor: 34}).Object
	for name, c := range map[string]struct {
		old, now *batchv1.Job
		want     *batchv1.PodFailurePolicy
	}{
		"opted in while it waits":      {job(t, waits, plain), job(t, waits), nil},
		"applied anew":                 {created, created.DeepCopy(), created.Spec.PodFailurePolicy},
		"replaced by its file":         {created, job(t, waits), created.Spec.PodFailurePolicy},
		"the user's own":               {job(t, waits, own), job(t, waits, own), job(t, own).Spec.PodFailurePolicy},
		"the user's own, taken away":   {job(t, waits, own), job(t, waits), nil},
		"opted out, with ours in it":   {created, job(t, waits, annotate(v1alpha1.AnnotationEnabled, "false"), func(j *batchv1.Job) { j.Spec.PodFailurePolicy = created.Spec.PodFailurePolicy }), created.Spec.PodFailurePolicy},
		"admitted before it was known": {createJob(t.Context(), job(t, waits, onFailure), Facts{}).Object, job(t, waits), nil},
	} {
		out := changeJob(t.Context(), c.old, c.now, Facts{Minor: 34})
		if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object.Spec.PodFailurePolicy, c.want) {
			t.Errorf("%s: %+v, %s", name, out.Object.Spec.PodFailurePolicy, said(out))
		}
	}
	if created.Spec.PodFailurePolicy == nil {
		t.Error("none at creation")
	}
}

func TestWholeWarnings(t *testing.T) {
	limit := func(n int32) func(*batchv1.Job) {
		return func(j *batchv1.Job) { onFailure(j); j.Spec.BackoffLimit = ptr.To(n) }
	}
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		want   string
	}{
		"none":                 {[]func(*batchv1.Job){limit(0)}, "fails after 1 out-of-memory kills of its containers, counted over all pods; write 10 or more, or restartPolicy Never"},
		"the usual":            {[]func(*batchv1.Job){onFailure, func(j *batchv1.Job) { j.Spec.BackoffLimit = nil }}, "after 6 out-of-memory kills"},
		"enough":               {[]func(*batchv1.Job){limit(10)}, ""},
		"not for so many pods": {[]func(*batchv1.Job){limit(10), func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](64), ptr.To[int32](64) }}, "write 64 or more"},
		"never":                {nil, ""},
		"a rule for kills":     {[]func(*batchv1.Job){failurePolicy(batchv1.PodFailurePolicyActionFailJob, 137)}, "spec.podFailurePolicy.rules[0]: where the node's kubelet supports restart rules, it restarts container trainer in its pod after exit code 137"},
		"a rule that ignores":  {[]func(*batchv1.Job){failurePolicy(batchv1.PodFailurePolicyActionIgnore, 137)}, ""},
		"a rule for others":    {[]func(*batchv1.Job){failurePolicy(batchv1.PodFailurePolicyActionFailJob, 3)}, ""},
		"both of the user's": {[]func(*batchv1.Job){failurePolicy(batchv1.PodFailurePolicyActionFailJob, 137), trainer(func(c *corev1.Container) {
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
		})}, ""},
	} {
		out := createJob(t.Context(), job(t, c.change...), Facts{Minor: 35})
		if len(out.Errors) > 0 {
			t.Fatalf("%s: %s", name, said(out))
		}
		got := ""
		for _, w := range out.Warnings {
			if strings.HasPrefix(w, "spec.backoffLimit") || strings.HasPrefix(w, "spec.podFailurePolicy") {
				got += w
			}
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
