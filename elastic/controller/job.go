package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// batchJob is the kind of the jobs of all gangs.
var batchJob kinds.BatchJob

// job is the object of a gang as the API server has it now.
type job struct {
	kind kinds.Kind
	obj  *unstructured.Unstructured
}

// over says whether the job has ended or is about to.
func (j *job) over() bool { return j.kind.State(j.obj).Ended }

func (j *job) suspended() bool { return j.kind.State(j.obj).Suspended }

func (c *Controller) job(ctx context.Context, g *v1alpha1.Gang) (*job, error) {
	return c.live(ctx, types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.JobRef.Name}, g.Spec.JobRef.UID)
}

// live reads a job from the API server itself; nil: it is gone.
func (c *Controller) live(ctx context.Context, name types.NamespacedName, uid string) (*job, error) {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(batchJob.GroupVersionKind())
	err := c.Live.Get(ctx, name, obj)
	if apierrors.IsNotFound(err) || err == nil && string(obj.GetUID()) != uid {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading job %s: %w", name, err)
	}
	return &job{kind: batchJob, obj: obj}, nil
}

// write patches this job, and none that was created under its name since. One that is gone needs no patch any more.
func (c *Controller) write(ctx context.Context, j *job, w kinds.Write) error {
	if w.Patch == nil {
		return nil
	}
	patch := maps.Clone(w.Patch)
	metadata, _ := patch["metadata"].(map[string]any)
	if metadata = maps.Clone(metadata); metadata == nil {
		metadata = map[string]any{}
	}
	metadata["uid"], patch["metadata"] = j.obj.GetUID(), metadata
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding a patch of job %s/%s: %w", j.obj.GetNamespace(), j.obj.GetName(), err)
	}
	target := &unstructured.Unstructured{}
	target.SetGroupVersionKind(j.kind.GroupVersionKind())
	target.SetNamespace(j.obj.GetNamespace())
	target.SetName(j.obj.GetName())
	p := client.RawPatch(w.Type, body)
	if w.Status {
		err = c.Client.Status().Patch(ctx, target, p, client.FieldOwner(FieldManager))
	} else {
		err = c.Client.Patch(ctx, target, p, client.FieldOwner(FieldManager))
	}
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("patching job %s/%s: %w", j.obj.GetNamespace(), j.obj.GetName(), err)
	}
	return nil
}

// released returns the change by which a pod leaves its job. The cache serves: it keeps what selects the pods.
func (c *Controller) released(ctx context.Context, name types.NamespacedName, pod *corev1.Pod) (kinds.Release, error) {
	cached := &batchv1.Job{}
	switch err := c.Client.Get(ctx, name, cached); {
	case apierrors.IsNotFound(err):
		return batchJob.Release(pod, nil), nil
	case err != nil:
		return kinds.Release{}, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return kinds.Release{}, fmt.Errorf("converting job %s: %w", name, err)
	}
	return batchJob.Release(pod, &unstructured.Unstructured{Object: content}), nil
}
