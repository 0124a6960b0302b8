// Package slimtest returns Jobs to tests as the cache returns them: without the fields that the cache drops. A test
// fails if it updates a Job with what the cache returned.
package slimtest

import (
	"context"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/internal/slim"
)

// Client returns Jobs of an API server as the cache has them.
func Client(t *testing.T, api client.WithWatch) client.WithWatch {
	written := func(o client.Object) {
		if _, ok := o.(*batchv1.Job); ok {
			t.Error("a Job is updated from the cache, which keeps a part of it: patch it")
		}
	}
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if job, ok := o.(*batchv1.Job); ok && err == nil {
				*job = *Job(t, job)
			}
			return err
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if jobs, ok := list.(*batchv1.JobList); ok && err == nil {
				for i := range jobs.Items {
					jobs.Items[i] = *Job(t, &jobs.Items[i])
				}
			}
			return err
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			written(o)
			return c.Update(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			written(o)
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
}

// Job returns a Job as the cache has it.
func Job(t *testing.T, job *batchv1.Job) *batchv1.Job {
	t.Helper()
	kept, err := slim.Job(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return kept.(*batchv1.Job)
}
