package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/story"
)

const notYet = "does not support the kind StatefulSet (apps) yet: train in an Indexed batch Job"

var optIn = map[string]string{v1alpha1.AnnotationEnabled: "true"}

// statefulSet has no pods, and these annotations on itself and on its pod template.
func statefulSet(namespace, name string, own, template map[string]string) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: own},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: template},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/x"}}},
			},
		},
	}
}

// testUnknownKinds: the API server denies the annotation where it has no effect, also if it is added later.
func testUnknownKinds(ctx context.Context, t *testing.T, w *story.World) {
	plain := statefulSet(story.Namespace, "plain-set", nil, nil)
	if err := w.Client().Create(ctx, plain); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Client().Delete(ctx, plain) }()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: story.Namespace, Name: "annotated", Annotations: optIn}}
	annotate := func(key, value string) error {
		return w.Client().Patch(ctx, plain, merge(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
	}
	for _, c := range []struct {
		what string
		err  error
		want string
	}{
		{"on the object", w.Client().Create(ctx, statefulSet(story.Namespace, "a", optIn, nil), client.DryRunAll), notYet},
		{"on the template", w.Client().Create(ctx, statefulSet(story.Namespace, "b", nil, optIn), client.DryRunAll), notYet},
		{"added later", annotate(v1alpha1.AnnotationEnabled, "true"), notYet},
		{"switched off", annotate(v1alpha1.AnnotationEnabled, "false"), ""},
		{"on what runs no pods", w.Client().Create(ctx, config, client.DryRunAll), ""},
	} {
		if said := fmt.Sprint(c.err); (c.err == nil) != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: %s, want %q", c.what, said, c.want)
		}
	}
	testKindsWarned(ctx, t, w)
}

// testKindsWarned: an administrator can turn the denial into a warning. An object with the annotation can still be changed otherwise, also
// once the annotation is denied.
func testKindsWarned(ctx context.Context, t *testing.T, w *story.World) {
	lenient := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "unknown-kinds", Labels: map[string]string{"holdfast.dev/unknown-kinds": "warn"}},
	}
	if err := w.Client().Create(ctx, lenient); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Client().Delete(ctx, lenient) }()
	set := statefulSet(lenient.Name, "set", nil, nil)
	if err := w.Client().Create(ctx, set); err != nil {
		t.Fatal(err)
	}
	said, err := w.Cluster.RunKubectl(ctx, "-n", lenient.Name, "annotate", "statefulset", "set", v1alpha1.AnnotationEnabled+"=true")
	if err != nil || !strings.Contains(said, "Warning: ") || !strings.Contains(said, notYet) {
		t.Errorf("no warning: %v: %s", err, said)
	}
	if err := w.Client().Patch(ctx, lenient, merge(`{"metadata":{"labels":{"holdfast.dev/unknown-kinds":null}}}`)); err != nil {
		t.Fatal(err)
	}
	if err := w.Until(ctx, "the annotation is denied again", time.Minute, func(ctx context.Context) (bool, string) {
		err := w.Client().Create(ctx, statefulSet(lenient.Name, "other", optIn, nil), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), notYet), fmt.Sprint(err)
	}); err != nil {
		t.Error(err)
	}
	if err := w.Client().Patch(ctx, set, merge(`{"metadata":{"annotations":{"example.com/other":"x"}}}`)); err != nil {
		t.Errorf("an unrelated change of what has it already: %v", err)
	}
}

func merge(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}
