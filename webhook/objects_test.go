package webhook

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// config is an installation in which every option is set.
var config = Config{
	AgentImage:    "holdfast.dev/holdfast-agent:test",
	Coordinator:   "holdfast-coordinator.holdfast-system.svc:7443",
	CoordinatorCA: "-----BEGIN CERTIFICATE-----\ntest\n-----END CERTIFICATE-----\n",
}

// job reads the plain Job that the tests change.
func job(t testing.TB, change ...func(*batchv1.Job)) *batchv1.Job {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "job.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	j := &batchv1.Job{}
	if err := yaml.UnmarshalStrict(text, j); err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(j)
	}
	return j
}

// annotate sets an annotation of the Job.
func annotate(key, value string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Annotations = setKey(j.Annotations, key, value) }
}

// annotateTemplate sets an annotation of the Job's pod template.
func annotateTemplate(key, value string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.Template.Annotations = setKey(j.Spec.Template.Annotations, key, value) }
}

// trainer changes the Job's first container.
func trainer(f func(*corev1.Container)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { f(&j.Spec.Template.Spec.Containers[0]) }
}

// podSpec changes the Job's pod spec.
func podSpec(f func(*corev1.PodSpec)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { f(&j.Spec.Template.Spec) }
}

// storage makes the Job copy its steps to a claim.
func storage(claim string) func(*batchv1.Job) {
	return annotate(v1alpha1.AnnotationStorageClaim, claim)
}

// objectOf returns a Job as the handlers read it.
func objectOf(j *batchv1.Job) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(j)
	if err != nil {
		panic(err) // every Job converts
	}
	obj := &unstructured.Unstructured{Object: content}
	obj.SetGroupVersionKind(kinds.BatchJob{}.GroupVersionKind())
	return obj
}

func typed(out Outcome[*unstructured.Unstructured]) Outcome[*batchv1.Job] {
	j := &batchv1.Job{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(out.Object.Object, j); err != nil {
		panic(err) // the object was a Job before
	}
	return Outcome[*batchv1.Job]{Object: j, Warnings: out.Warnings, Errors: out.Errors}
}

// mutateJob admits an object that is created.
func mutateJob(ctx context.Context, kind kinds.Kind, in *unstructured.Unstructured, facts Facts) Outcome[*unstructured.Unstructured] {
	o := takeApart(kind, in)
	o.prepare(nil)
	return o.mutate(ctx, nil, facts)
}

// checkJobUpdate admits a change of an object.
func checkJobUpdate(
	ctx context.Context, kind kinds.Kind, old, in *unstructured.Unstructured, facts Facts,
) Outcome[*unstructured.Unstructured] {
	was, now := takeApart(kind, old), takeApart(kind, in)
	if !now.rewrites(was) {
		return now.checkUpdate(was)
	}
	now.prepare(was)
	return now.mutate(ctx, was, facts)
}

// createJob admits the creation of a batch Job.
func createJob(ctx context.Context, j *batchv1.Job, facts Facts) Outcome[*batchv1.Job] {
	return typed(mutateJob(ctx, kinds.BatchJob{}, objectOf(j), facts))
}

// changeJob admits a change of a batch Job.
func changeJob(ctx context.Context, old, in *batchv1.Job, facts Facts) Outcome[*batchv1.Job] {
	return typed(checkJobUpdate(ctx, kinds.BatchJob{}, objectOf(old), objectOf(in), facts))
}

// podOf returns the pod that the Job controller creates for the Job.
func podOf(j *batchv1.Job) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: *j.Spec.Template.ObjectMeta.DeepCopy(), Spec: *j.Spec.Template.Spec.DeepCopy()}
	p.GenerateName = j.Name + "-0-"
	p.Namespace = j.Namespace
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: "uid-of-" + "job", Controller: ptr.To(true)}}
	p.Annotations = setKey(p.Annotations, batchv1.JobCompletionIndexAnnotation, "0")
	p.Labels = setKey(p.Labels, batchv1.JobNameLabel, j.Name)
	return p
}

// admitted runs the Job through admission and returns it.
func admitted(t testing.TB, j *batchv1.Job) *batchv1.Job {
	t.Helper()
	out := createJob(t.Context(), j, Facts{})
	if len(out.Errors) > 0 {
		t.Fatal(out.Errors.ToAggregate())
	}
	return out.Object
}

// injected runs a pod of the Job through admission and returns it.
func injected(t testing.TB, j *batchv1.Job) *corev1.Pod {
	t.Helper()
	out := MutatePod(t.Context(), podOf(admitted(t, j)), config)
	if len(out.Errors) > 0 {
		t.Fatal(out.Errors.ToAggregate())
	}
	return out.Object
}

// said returns the messages of an outcome, one per line.
func said[T any](out Outcome[T]) string {
	var b strings.Builder
	for _, e := range out.Errors {
		b.WriteString("refused: " + e.Error() + "\n")
	}
	for _, w := range out.Warnings {
		b.WriteString("warning: " + w + "\n")
	}
	return b.String()
}
