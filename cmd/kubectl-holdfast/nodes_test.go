package main

import (
	"context"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestReadNodes: a list that the user may not read is noted. Without the list of nodes the command fails.
func TestReadNodes(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", nil)
	for name, c := range map[string]struct {
		denied func(client.ObjectList) bool
		notes  int
		err    string
	}{
		"all":       {func(client.ObjectList) bool { return false }, 0, ""},
		"no leases": {func(l client.ObjectList) bool { _, ok := l.(*coordinationv1.LeaseList); return ok }, 1, ""},
		"no gangs":  {func(l client.ObjectList) bool { _, ok := l.(*v1alpha1.GangList); return ok }, 1, ""},
		"no nodes":  {func(l client.ObjectList) bool { _, ok := l.(*corev1.NodeList); return ok }, 0, "ClusterRole holdfast-nodes-view"},
	} {
		api := fake.NewClientBuilder().WithScheme(s).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).
			WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
					if c.denied(l) {
						return forbidden
					}
					return w.List(ctx, l, o...)
				}}).Build()
		in, err := readNodes(t.Context(), api)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v", name, err)
			}
		case err != nil || len(in.Nodes) != 1 || len(in.Notes) != c.notes:
			t.Errorf("%s: %+v, %v", name, in, err)
		case (in.Gangs == nil) != (name == "no gangs"):
			t.Errorf("%s: gangs %v", name, in.Gangs)
		}
	}
}
