package webhook

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// An observed Job is marked and otherwise unchanged, whatever its shape. So are its pods.
func TestObservedIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*batchv1.Job){
		"as it is":    func(*batchv1.Job) {},
		"not indexed": func(j *batchv1.Job) { j.Spec.CompletionMode = nil },
		"no command":  func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Command = nil },
	} {
		in := job(t, annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve), change)
		out := createJob(t.Context(), in, Facts{})
		if len(out.Errors)+len(out.Warnings) > 0 {
			t.Errorf("%s: %s", name, said(out))
			continue
		}
		if !equality.Semantic.DeepEqual(out.Object.Spec.Template.Spec, in.Spec.Template.Spec) ||
			out.Object.Spec.Template.Labels[v1alpha1.LabelGang] != "" ||
			out.Object.Spec.PodReplacementPolicy != in.Spec.PodReplacementPolicy {
			t.Errorf("%s: touched", name)
		}
		if j, ok := settings.AdmittedJob(out.Object); !ok || !j.Settings.Observe || j.Members != *in.Spec.Parallelism {
			t.Errorf("%s: admitted as %+v, %v", name, j, ok)
		}
		pod := podOf(out.Object)
		if got := MutatePod(t.Context(), pod, config); len(got.Errors)+len(got.Warnings) > 0 || !equality.Semantic.DeepEqual(pod, got.Object) {
			t.Errorf("%s: its pod is touched: %s", name, said(got))
		}
		larger := out.Object.DeepCopy()
		larger.Spec.Parallelism = ptr.To[int32](7)
		if got := changeJob(t.Context(), out.Object, larger, Facts{}); len(got.Errors) > 0 {
			t.Errorf("%s: its size may not be changed: %s", name, said(got))
		}
	}
	bad := job(t, annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve), annotate("holdfast.dev/x", "y"))
	if out := createJob(t.Context(), bad, Facts{}); len(out.Errors) != 1 {
		t.Errorf("a key that is not known: %s", said(out))
	}
}

// TestObserveOnly: while Holdfast runs with --observe-only, a Job that requests more is observed, and its user gets a warning.
func TestObserveOnly(t *testing.T) {
	for name, change := range map[string]func(*batchv1.Job){
		"says nothing":    func(*batchv1.Job) {},
		"asks for acting": annotate(v1alpha1.AnnotationMode, v1alpha1.ModeAct),
		"asks in its pods": func(j *batchv1.Job) {
			j.Spec.Template.Annotations = setKey(j.Spec.Template.Annotations, v1alpha1.AnnotationMode, v1alpha1.ModeAct)
		},
		"asks for no more":  annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve),
		"is not opted in":   func(j *batchv1.Job) { j.Annotations = nil },
		"has not begun yet": func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) },
	} {
		in := job(t, change)
		out := createJob(t.Context(), in, Facts{ObserveOnly: true})
		if name == "has not begun yet" { // and was admitted before
			before := createJob(t.Context(), in, Facts{}).Object
			out = changeJob(t.Context(), before, before, Facts{ObserveOnly: true})
		}
		j, ours := settings.AdmittedJob(out.Object)
		if len(out.Errors) > 0 || ours != (name != "is not opted in") || ours && !j.Settings.Observe {
			t.Errorf("%s: admitted as %+v, %v: %s", name, j, ours, said(out))
		}
		if warned := len(out.Warnings) == 1; warned != (ours && name != "asks for no more") {
			t.Errorf("%s: %s", name, said(out))
		}
		if pod := podOf(out.Object); !equality.Semantic.DeepEqual(pod, MutatePod(t.Context(), pod, config).Object) {
			t.Errorf("%s: its pod is touched", name)
		}
	}
}
