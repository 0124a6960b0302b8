package external

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	// forScheduler reports whether all pods of the job will name a scheduler.
	forScheduler func(job *unstructured.Unstructured, name string) bool
}

var owners = []owner{
	{kinds.VolcanoJob{}, vcbatch.JobNameKey, volcanoJobFor},
	{kinds.PyTorchJob{}, "training.kubeflow.org/job-name", pyTorchJobFor}, // under training-operator's --gang-scheduler-name=volcano
}

// volcanoJobFor: Volcano's controller writes the job's scheduler on each pod that names none.
func volcanoJobFor(job *unstructured.Unstructured, name string) bool {
	of, _, err := unstructured.NestedString(job.Object, "spec", "schedulerName")
	return err == nil && of == name
}

// pyTorchJobFor: training-operator writes Volcano's scheduler on each pod that names none.
func pyTorchJobFor(job *unstructured.Unstructured, name string) bool {
	roles, _, err := unstructured.NestedMap(job.Object, "spec", "pytorchReplicaSpecs")
	for _, role := range roles {
		fields, ok := role.(map[string]any)
		if !ok {
			return false
		}
		if of, _, err := unstructured.NestedString(fields, "template", "spec", "schedulerName"); err != nil || of != name {
			return false
		}
	}
	return err == nil && len(roles) > 0
}

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

// letsIn reports whether a group that has no pods yet is to be let in: it is Pending, and its owner's pods will name this scheduler.
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
	return o.forScheduler(job, w.profile), nil
}
