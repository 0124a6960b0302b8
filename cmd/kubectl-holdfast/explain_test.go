package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/restmapper"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/explain"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/golden"
)

func job(name string, annotations, template map[string]string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "u-1", Annotations: annotations}}
	j.Spec.Template.Annotations = template
	return j
}

func gangOf(name, uid string) *v1alpha1.Gang {
	return &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec: v1alpha1.GangSpec{Members: 1, JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: uid}}}
}

// served returns a cluster's RESTMapper as kubectl has it, with short names: these kinds, built-in ones first.
func served() meta.RESTMapper {
	var lists []*metav1.APIResourceList
	var groups []*restmapper.APIGroupResources
	add := func(gv schema.GroupVersion, name, kind string, short ...string) {
		r := metav1.APIResource{Name: name, SingularName: strings.ToLower(kind), Namespaced: true, Kind: kind, ShortNames: short}
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		lists = append(lists, &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{r}})
		groups = append(groups, &restmapper.APIGroupResources{
			Group:              metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
			VersionedResources: map[string][]metav1.APIResource{gv.Version: {r}},
		})
	}
	add(corev1.SchemeGroupVersion, "pods", "Pod", "po")
	add(batchv1.SchemeGroupVersion, "jobs", "Job")
	add(schema.GroupVersion{Group: "batch.volcano.sh", Version: "v1alpha1"}, "jobs", "Job", "vcjob", "vj")
	add(schema.GroupVersion{Group: "jobset.x-k8s.io", Version: "v1alpha2"}, "jobsets", "JobSet")
	add(schema.GroupVersion{Group: "kubeflow.org", Version: "v1"}, "pytorchjobs", "PyTorchJob")
	add(v1alpha1.GroupVersion, "gangs", "Gang", "gg")
	discovery := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: lists}}
	return restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), discovery, nil)
}

// TestFind: testdata/find.txt lists arguments of users, each with the Gang that is found or the error. testdata/find.yaml has the objects.
func TestFind(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/find.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var world []client.Object
	for _, doc := range strings.Split(string(text), "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetNamespace("team-a")
		world = append(world, u)
	}
	golden.Scripts(t, "testdata/find.txt", func(t *testing.T, out *strings.Builder) func(string) {
		api := fake.NewClientBuilder().WithScheme(s).WithRESTMapper(served()).WithObjects(world...).Build()
		return func(what string) {
			g, err := find(t.Context(), api, "team-a", what)
			if err != nil {
				fmt.Fprintf(out, "  error: %v\n", err)
				return
			}
			fmt.Fprintf(out, "  gang %s of %s\n", g.Name, page.JobTitle(g.Namespace, g.Spec.JobRef))
		}
	})
}

// TestFindElsewhere: a cluster without Gangs, a kind that only other clusters serve, and a kind that the user may not read.
func TestFindElsewhere(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	absent := interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			kind := o.GetObjectKind().GroupVersionKind().GroupKind()
			if _, ok := o.(*v1alpha1.Gang); ok || kind.Kind == "JobSet" {
				return &meta.NoKindMatchError{GroupKind: kind}
			}
			if kind.Kind == "PyTorchJob" {
				return apierrors.NewForbidden(schema.GroupResource{Group: kind.Group, Resource: "pytorchjobs"}, key.Name, errors.New("no"))
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
	enabled := map[string]string{v1alpha1.AnnotationEnabled: "true"}
	api := fake.NewClientBuilder().
		WithScheme(s).
		WithRESTMapper(served()).
		WithObjects(job("good", enabled, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "1"})).
		WithInterceptorFuncs(absent).
		Build()
	for what, want := range map[string]string{
		"job/good":     "install Holdfast",
		"good":         "install Holdfast",
		"gang/good":    "install Holdfast",
		"jobset/x":     "this cluster serves no jobsets.jobset.x-k8s.io",
		"pytorchjob/x": "you may not read pytorchjobs.kubeflow.org in namespace team-a: name the job's Gang, gang/x",
		"mpijob/x":     `this cluster serves no resource "mpijob": use job/NAME, vcjob/NAME, jobset/NAME, pytorchjob/NAME or gang/NAME`,
	} {
		if _, err := find(t.Context(), api, "team-a", what); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
}

// TestOutput: every command prints text for users, and the same facts as JSON and YAML.
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
