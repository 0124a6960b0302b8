package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/explain"
)

func job(name string, annotations, template map[string]string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "u-1", Annotations: annotations}}
	j.Spec.Template.Annotations = template
	return j
}

func gangOf(name, uid string) *v1alpha1.Gang {
	return &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec: v1alpha1.GangSpec{Members: 1, JobRef: v1alpha1.JobReference{Kind: "Job", Name: name, UID: uid}}}
}

// TestFind: every error has its remedy.
func TestFind(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{batchv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	enabled := map[string]string{v1alpha1.AnnotationEnabled: "true"}
	admitted := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "1"}
	world := []client.Object{
		job("good", enabled, admitted), gangOf("good", "u-1"),
		job("again", enabled, admitted), gangOf("again", "u-0"),
		job("young", enabled, admitted), job("late", enabled, nil), job("plain", nil, nil),
	}
	absent := interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.Gang); ok {
				return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "holdfast.dev", Kind: "Gang"}}
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
	for name, c := range map[string]struct {
		what, want string
		funcs      interceptor.Funcs
	}{
		"job":             {"job/good", "", interceptor.Funcs{}},
		"gang":            {"gang/good", "", interceptor.Funcs{}},
		"bare name":       {"good", "", interceptor.Funcs{}},
		"no such job":     {"job/none", "-n", interceptor.Funcs{}},
		"no such gang":    {"gang/none", "kubectl get gangs -A", interceptor.Funcs{}},
		"another kind":    {"pod/x", "job/NAME", interceptor.Funcs{}},
		"not opted in":    {"job/plain", `create it with the annotation holdfast.dev/enabled: "true"`, interceptor.Funcs{}},
		"opted in late":   {"job/late", "delete it and create it again", interceptor.Funcs{}},
		"not yet":         {"job/young", "whether holdfast-controller runs", interceptor.Funcs{}},
		"of an older job": {"job/again", "try again", interceptor.Funcs{}},
		"not installed":   {"job/good", "install Holdfast", absent},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(world...).WithInterceptorFuncs(c.funcs).Build()
			g, err := find(t.Context(), api, "team-a", c.what)
			switch {
			case c.want == "" && (err != nil || g.Name != "good"):
				t.Errorf("find = %v, %v", g, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestOutput: every command prints text for users, and the same facts as json and yaml.
func TestOutput(t *testing.T) {
	e := explain.Explanation{Namespace: "team-a", Gang: "good", Job: v1alpha1.JobReference{Kind: "Job", Name: "good"}}
	for format, want := range map[string]string{"text": "Job team-a/good", "json": `"gang": "good"`, "yaml": "gang: good"} {
		o := outputFlag(&cobra.Command{}, "text")
		o.format = format
		var out strings.Builder
		if err := errors.Join(o.check(), o.print(&out, e, func(string) string { return e.Text() })); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q lacks %q", format, out.String(), want)
		}
	}
	for _, args := range [][]string{{"explain", "job/x", "-o", "xml"}, {"nodes", "-o", "xml"}} {
		c := command(genericclioptions.NewTestIOStreamsDiscard())
		c.SetArgs(args)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "use one of text") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
