package external

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	vcbatch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/internal/kinds"
)

// owner is a kind of job whose controller creates pods only once the job's PodGroup has left Pending. Until then no pod says which
// scheduler the group is for, and the job's object must.
type owner struct {
	kind kinds.Kind
	// label has the job's name on each of its pods.
	label string
}

// owners: training-operator waits under --gang-scheduler-name=volcano.
var owners = []owner{{kinds.VolcanoJob{}, vcbatch.JobNameKey}, {kinds.PyTorchJob{}, "training.kubeflow.org/job-name"}}

// ownerOf is the kind of a group's owner, and the owner; ref is nil where the owner's controller waits for no group.
func ownerOf(pg *vcscheduling.PodGroup) (o owner, ref *metav1.OwnerReference) {
	ref = metav1.GetControllerOf(pg)
	for _, o := range owners {
		if gvk := o.kind.GroupVersionKind(); ref != nil && ref.Kind == gvk.Kind && ref.APIVersion == gvk.GroupVersion().String() {
			return o, ref
		}
	}
	return owner{}, nil
}

// selector finds the pods of the owner's job.
func (o owner) selector(ref *metav1.OwnerReference) string {
	return labels.SelectorFromSet(labels.Set{o.label: ref.Name}).String()
}

// letsIn reports whether a group that has no pods yet is to be let in: it is Pending, and all of its owner's pods will name this
// scheduler. On pods that name none the two controllers write Volcano's.
func (w *Writer) letsIn(ctx context.Context, pg *vcscheduling.PodGroup, o owner, ref *metav1.OwnerReference) (bool, error) {
	if ref == nil || pg.Status.Phase != "" && pg.Status.Phase != vcscheduling.PodGroupPending {
		return false, nil
	}
	gvr := o.kind.GroupVersionKind().GroupVersion().WithResource(o.kind.Resource())
	job, err := w.book.client.Resource(gvr).Namespace(pg.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && job.GetUID() != ref.UID:
		return false, nil // its group goes with it
	case err != nil:
		return false, fmt.Errorf("reading the scheduler's name of %s %s/%s: %w", gvr.GroupResource(), pg.Namespace, ref.Name, err)
	}
	read, _ := o.kind.Read(job) // whether Holdfast could keep it alive does not matter
	return len(read.Roles) > 0 && !slices.ContainsFunc(read.Roles, func(r kinds.Role) bool { return r.Scheduler != w.profile }), nil
}
