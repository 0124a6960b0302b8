package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const jobFile = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations: {holdfast.dev/enabled: "true"}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers: [{name: train, image: x, command: [torchrun, train.py]}]
`

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadJob(t *testing.T) {
	job, err := readJob(written(t, jobFile))
	if err != nil || job.GetName() != "train" {
		t.Fatalf("%v, %v", job, err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no file": {"", "no such file"},
		"no yaml": {"{", "reading "},
		"nothing": {"# nothing\n", "holds no object"},
		"no Job":  {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "only v1 Pod"},
		"JobSet": {"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: x}\n",
			"holds JobSet x (jobset.x-k8s.io/v1alpha2): kubectl apply --dry-run=server -f "},
		"Volcano Job": {"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\n",
			"kubectl holdfast explain vcjob/x shows where its pods are placed"},
		"two of them": {jobFile + "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: b}\n", "holds 2 Jobs"},
	} {
		path := "none.yaml"
		if c.text != "" {
			path = written(t, c.text)
		}
		if _, err := readJob(path); err == nil || !strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := settleNamespace(job, "a", false); err != nil || job.GetNamespace() != "a" {
		t.Errorf("%s, %v", job.GetNamespace(), err)
	}
	if err := settleNamespace(job, "b", true); err == nil || !strings.Contains(err.Error(), "-n gives b") {
		t.Errorf("two namespaces: %v", err)
	}
}

// server returns an API server that admits objects by a small part of Holdfast's admission. If deny returns an error, that is the answer.
func server(t *testing.T, deny func(*unstructured.Unstructured) error) client.Client {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	admit := func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		u, ok := o.(*unstructured.Unstructured)
		options := (&client.CreateOptions{}).ApplyOptions(opts).AsCreateOptions()
		if !ok || len(options.DryRun) != 1 || options.DryRun[0] != metav1.DryRunAll || options.FieldValidation != metav1.FieldValidationStrict {
			t.Errorf("%T is created with %+v: that is no dry run", o, options)
		}
		if err := deny(u); err != nil {
			return err
		}
		u.SetUID("made-up")
		if u.GetAnnotations()[v1alpha1.AnnotationEnabled] == "true" && u.GetKind() == "Job" {
			_ = unstructured.SetNestedField(u.Object, "true", "spec", "template", "metadata", "annotations", v1alpha1.AnnotationEnabled)
			_ = unstructured.SetNestedField(u.Object, "2", "spec", "template", "metadata", "annotations", v1alpha1.AnnotationGangSize)
		}
		return nil
	}
	return fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{Create: admit}).Build()
}

func theJob(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	job, err := readJob(written(t, jobFile))
	if err != nil {
		t.Fatal(err)
	}
	job.SetNamespace("team-a")
	return job
}

func TestDryRunCreatesNothing(t *testing.T) {
	c := server(t, func(*unstructured.Unstructured) error { return nil })
	a, err := dryRun(t.Context(), c, theJob(t))
	if err != nil {
		t.Fatal(err)
	}
	if a.Plain == nil || a.Pod == nil || a.PlainPod == nil || len(a.PlainPod.Annotations) != 1 ||
		a.Pod.Annotations[v1alpha1.AnnotationGangSize] != "2" {
		t.Errorf("%+v", a)
	}
	if ref := metav1.GetControllerOf(a.Pod); ref == nil || ref.UID != "made-up" || ref.Name != "train" {
		t.Errorf("the pod's owner is %+v", ref)
	}
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}} {
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if n := len(must(runtime.DefaultUnstructuredConverter.ToUnstructured(list))["items"].([]any)); n != 0 {
			t.Errorf("%d of %T are left", n, list)
		}
	}
}

func must(m map[string]any, err error) map[string]any {
	if err != nil {
		panic(err)
	}
	return m
}

// Each failure has its own message and exit code.
func TestDryRunErrors(t *testing.T) {
	jobs, pods := schema.GroupResource{Group: "batch", Resource: "jobs"}, schema.GroupResource{Resource: "pods"}
	rbac := errors.New(`User "x" cannot create resource "jobs" in API group "batch"`)
	kind := func(k string, err error) func(*unstructured.Unstructured) error {
		return func(u *unstructured.Unstructured) error {
			if u.GetKind() == k {
				return err
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		deny func(*unstructured.Unstructured) error
		want string
		code int
	}{
		"no right":     {kind("Job", apierrors.NewForbidden(jobs, "train", rbac)), "you may not create jobs in namespace team-a", 1},
		"refused":      {kind("Job", apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "train", nil)), "the Job would be refused", exitRefused},
		"unknown key":  {kind("Job", apierrors.NewBadRequest(`strict decoding error: unknown field "spec.paralelism"`)), "spec.paralelism", exitRefused},
		"pod refused":  {kind("Pod", apierrors.NewForbidden(pods, "x", errors.New("violates PodSecurity"))), "violates PodSecurity", exitRefused},
		"webhook away": {kind("Job", apierrors.NewInternalError(errors.New(`failed calling webhook "jobs.holdfast.dev"`))), "does not answer", 1},
		"no namespace": {kind("Job", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "team-a")), "create the namespace first", 1},
	} {
		_, err := dryRun(t.Context(), server(t, c.deny), theJob(t))
		var said strings.Builder
		if err == nil || report(&said, err) != c.code || !strings.Contains(said.String(), c.want) {
			t.Errorf("%s: %v, exit code %d", name, err, report(&said, err))
		}
	}
	a, err := dryRun(t.Context(), server(t, kind("Pod", apierrors.NewForbidden(pods, "x", errors.New(`User "x" cannot create resource "pods"`)))), theJob(t))
	if err != nil || a.Pod != nil || !strings.Contains(a.Unshown, "you may not create pods") || a.Unasked == "" {
		t.Errorf("without the right to create pods: %+v, %v", a, err)
	}
	exists := func(u *unstructured.Unstructured) error {
		if u.GetName() == "train" {
			return apierrors.NewAlreadyExists(jobs, "train")
		}
		return nil
	}
	a, err = dryRun(t.Context(), server(t, exists), theJob(t))
	if err != nil || a.Job.Name != "train-preview" || len(a.Warnings) != 1 {
		t.Errorf("a Job that exists: %+v, %v", a, err)
	}
	plain := theJob(t)
	plain.SetAnnotations(nil)
	if _, err := dryRun(t.Context(), server(t, func(*unstructured.Unstructured) error { return nil }), plain); err == nil ||
		!strings.Contains(err.Error(), "not opted in") {
		t.Errorf("a Job that is not opted in: %v", err)
	}
}

// The command reads nodes if the job keeps state in memory. If the user may not read nodes, the output says so.
func TestNodesFor(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	c := fake.NewClientBuilder().
		WithScheme(s).
		WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if refused != nil {
					return refused
				}
				return c.List(ctx, list, opts...)
			}}).
		Build()
	keeps := job("train", map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Gi"}, nil)
	if nodes, unread, err := nodesFor(t.Context(), c, keeps); err != nil || unread != "" || len(nodes) != 1 {
		t.Errorf("%v, %q, %v", nodes, unread, err)
	}
	refused = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
	if nodes, unread, err := nodesFor(t.Context(), c, keeps); err != nil || !strings.Contains(unread, "holdfast-nodes-view") || nodes != nil {
		t.Errorf("without the right: %v, %q, %v", nodes, unread, err)
	}
	refused = errors.New("broken")
	if _, _, err := nodesFor(t.Context(), c, keeps); err == nil {
		t.Error("a broken answer is none")
	}
	if _, unread, err := nodesFor(t.Context(), c, job("train", map[string]string{v1alpha1.AnnotationEnabled: "true"}, nil)); err != nil ||
		unread != "" {
		t.Errorf("nodes were asked for without need: %q, %v", unread, err)
	}
}
