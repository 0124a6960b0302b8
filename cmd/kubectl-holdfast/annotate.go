package main

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/kinds"
)

// change changes annotations of a job; it reports whether they must be written.
type change func(job *metav1.PartialObjectMetadata) (write bool, err error)

// annotateJob writes a change of annotations of the job of a Gang, on the newest version of its object. what is the change for users, key
// the annotation that errors name.
func annotateJob(ctx context.Context, c client.Client, g *v1alpha1.Gang, what, key string, apply change) error {
	ref, name := g.Spec.JobRef, types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.JobRef.Name}
	kind, ok := kinds.Of(page.KindOf(ref))
	if !ok {
		return fmt.Errorf("gang %s is of %s, a kind that this version of kubectl holdfast does not know: use the one of the version that the cluster runs", g.Name, page.JobTitle(g.Namespace, ref))
	}
	for {
		job := &metav1.PartialObjectMetadata{}
		job.SetGroupVersionKind(kind.GroupVersionKind())
		if err := c.Get(ctx, name, job); err != nil {
			return objectError(err, kind, name)
		}
		if string(job.UID) != ref.UID {
			return errors.New("the job was re-created meanwhile: try again")
		}
		before := job.DeepCopy()
		if write, err := apply(job); err != nil || !write {
			return err
		}
		err := c.Patch(ctx, job, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		switch {
		case apierrors.IsConflict(err):
			continue
		case apierrors.IsForbidden(err):
			return fmt.Errorf("%s is an annotation of the job, which you may not change: it takes patch on %s in namespace %s%s: %w", what, resourceOf(kind), g.Namespace, allows(kind), err)
		case err != nil:
			return fmt.Errorf("writing annotation %s of %s: %w", key, page.JobName(ref), err)
		}
		return nil
	}
}

// allows names who has the right to change an object of a kind, where Kubernetes itself says that.
func allows(k kinds.Kind) string {
	if _, batch := k.(kinds.BatchJob); batch {
		return ", as ClusterRole edit allows"
	}
	return ""
}
