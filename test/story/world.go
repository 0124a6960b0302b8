package story

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

// World is a cluster of at least three real nodes with two GPUs each, on which the story is played.
type World struct {
	*harness.Cluster
	// WhileWarming, if set, is called while the ranks' standbys warm up, which takes as long without it.
	WhileWarming func(context.Context) error
}

// Gone waits until a job and all its pods are gone.
func (w *World) Gone(ctx context.Context, job string) error {
	return w.Until(ctx, job+" is gone", time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, Namespace, job)
		if err != nil || len(pods) > 0 {
			return false, fmt.Sprintf("%d pods, %v", len(pods), err)
		}
		err = w.Client().Get(ctx, client.ObjectKey{Namespace: Namespace, Name: job}, &batchv1.Job{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

func (w *World) gang(ctx context.Context, name string) (*v1alpha1.Gang, error) {
	var g v1alpha1.Gang
	if err := w.Client().Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &g); err != nil {
		return nil, fmt.Errorf("reading gang %s: %w", name, err)
	}
	return &g, nil
}
