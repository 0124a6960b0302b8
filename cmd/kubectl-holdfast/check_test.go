package main

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// checks returns a cluster with a job, whose coordinator took request 4 and takes further ones where it answers.
func checks(t *testing.T, answers bool, refuse error) client.Client {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	g := gangOf("train", "u-1")
	g.Status.Run = &v1alpha1.RunStatus{Generation: 2, CheckWish: 4}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: "train", UID: "u-1"}}
	return fake.NewClientBuilder().
		WithScheme(s).
		WithRESTMapper(served()).
		WithObjects(g, job).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				if refuse != nil {
					return refuse
				}
				if err := c.Patch(ctx, obj, p, opts...); err != nil || !answers {
					return err
				}
				now := &v1alpha1.Gang{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(obj), now); err != nil {
					return err
				}
				now.Status.Run.CheckWish = settings.CheckWishOfJob(obj).Number
				now.Status.Run.NodeCheck = &v1alpha1.NodeCheck{Generation: 3, Result: "Ordered", Wish: now.Status.Run.CheckWish}
				return c.Update(ctx, now)
			}}).
		Build()
}

// TestCheck: the request is on the job's object, with a number that no earlier one had, and the answer says when the check is made.
func TestCheck(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "train", nil)
	for name, v := range map[string]struct {
		request checking
		answers bool
		refuse  error
		wish    string
		said    string
	}{
		"later":           {checking{}, true, nil, "5", "a node check of job/train is due before generation 3, whenever that begins"},
		"now":             {checking{now: true}, true, nil, "5,now", "before generation 3, and its ranks restart for it now"},
		"undone":          {checking{undo: true}, false, nil, "", "no node check of job/train is requested any more"},
		"no answer":       {checking{}, false, nil, "5", "has not taken it within"},
		"without a right": {checking{}, false, forbidden, "", "it takes patch on jobs"},
	} {
		api := checks(t, v.answers, v.refuse)
		v.request.what, v.request.wait = "job/train", 2*pinPoll
		said, err := v.request.carryOut(t.Context(), api, gangOf("train", "u-1").Namespace)
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, v.said) {
			t.Errorf("%s: said %q", name, said)
		}
		job := &batchv1.Job{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(gangOf("train", "u-1")), job); err != nil {
			t.Fatal(err)
		}
		if got := job.Annotations[v1alpha1.AnnotationCheckWish]; got != v.wish {
			t.Errorf("%s: annotation %q", name, got)
		}
	}
}

// TestCheckOfAJobThatIsOver: nothing is written, because no generation follows.
func TestCheckOfAJobThatIsOver(t *testing.T) {
	api, g := checks(t, true, nil), gangOf("train", "u-1")
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		t.Fatal(err)
	}
	g.Status.Run.Verdict = &v1alpha1.Verdict{Reason: "Finished"}
	if err := api.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	said, err := checking{what: "job/train", wait: time.Second}.carryOut(t.Context(), api, g.Namespace)
	if err != nil || !strings.Contains(said, "is over") {
		t.Errorf("said %q, %v", said, err)
	}
}
