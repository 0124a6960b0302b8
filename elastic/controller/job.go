package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// job is the object of a gang as the API server has it now.
type job struct {
	kind kinds.Kind
	obj  *unstructured.Unstructured
}

// over says whether the job has ended or is about to.
func (j *job) over() bool { return j.kind.State(j.obj).Ended }

func (j *job) suspended() bool { return j.kind.State(j.obj).Suspended }

// keyOf is the coordinator's key of a Gang.
func keyOf(g *v1alpha1.Gang) coordinator.Key {
	return coordinator.Key{Namespace: g.Namespace, Name: g.Name, Job: g.Spec.JobRef.UID}
}

// jobName names the job of a gang, which is named as it is.
func jobName(key coordinator.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// live reads the job of a gang from the API server itself; nil: it is gone.
func (c *Controller) live(ctx context.Context, key coordinator.Key) (*job, error) {
	kind, obj, err := c.Jobs.Live(ctx, jobName(key), types.UID(key.Job))
	if err != nil || obj == nil {
		return nil, err
	}
	return &job{kind: kind, obj: obj}, nil
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
		return fmt.Errorf("encoding a patch of %s: %w", j.text(), err)
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
		return fmt.Errorf("patching %s: %w", j.text(), err)
	}
	return nil
}

func (j *job) text() string { return jobs.Text(j.kind, client.ObjectKeyFromObject(j.obj)) }

// released returns the change by which a pod leaves its job; false: the job is gone.
func (c *Controller) released(ctx context.Context, key coordinator.Key, pod *corev1.Pod) (change kinds.Release, there bool, err error) {
	kind, err := c.kindOf(ctx, key)
	if err != nil || kind == nil {
		return kinds.Release{}, false, err
	}
	maker, err := c.maker(ctx, pod)
	return kind.Release(pod, maker), err == nil, err
}

// kindOf is the kind of a gang's job; nil: the job is gone. The cached Gang serves: what it says of its job does not change.
func (c *Controller) kindOf(ctx context.Context, key coordinator.Key) (kinds.Kind, error) {
	if g, err := c.gang(ctx, c.Client, key); err == nil {
		if kind, ok := kinds.Of(schema.FromAPIVersionAndKind(g.Spec.JobRef.APIVersion, g.Spec.JobRef.Kind).GroupKind()); ok {
			return kind, nil
		}
	}
	j, err := c.live(ctx, key)
	if err != nil || j == nil {
		return nil, err
	}
	return j.kind, nil
}

// maker is the batch Job that created a pod: the gang's own, or one of a JobSet. The cache serves: it keeps what selects the pods. nil:
// a controller of another kind did, or the Job is gone.
func (c *Controller) maker(ctx context.Context, pod *corev1.Pod) (*unstructured.Unstructured, error) {
	ref := membership.OwningJob(pod)
	if ref == nil {
		return nil, nil
	}
	cached := &batchv1.Job{}
	name := types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}
	if err := c.Client.Get(ctx, name, cached); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if cached.UID != ref.UID {
		return nil, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return nil, fmt.Errorf("converting Job %s: %w", name, err)
	}
	return &unstructured.Unstructured{Object: content}, nil
}
