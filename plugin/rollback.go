package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// rollbackBackoff retries a deletion for some 25 s. It has no Cap, because the first delay beyond a Cap ends all retries.
var rollbackBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 10}

// rollBack deletes the members that got nodes when the others of their gang got none, newest first. A pod cannot be unbound; its controller
// creates a new one, and the gang waits complete.
func (p *Plugin) rollBack(ctx context.Context, key types.NamespacedName, pods []*v1.Pod, why string) {
	logger := klog.FromContext(ctx)
	for _, pod := range pods {
		p.handle.EventRecorder().WithLogger(logger).Eventf(pod, nil, v1.EventTypeWarning, v1alpha1.ReasonRolledBack, "Unplacing", "rolled back, because the rest of gang %s got no nodes: %s", key.Name, why)
		backoff := rollbackBackoff
		err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
			err := p.release(ctx, pod)
			if err == nil {
				err = p.handle.ClientSet().
					CoreV1().
					Pods(pod.Namespace).
					Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
			}
			return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err), nil
		})
		if err == nil {
			p.measures.rolledBack.Inc()
		}
		if err != nil {
			logger.Error(err, "Deleting a member of a half-placed gang", "gang", key, "pod", klog.KObj(pod))
			if now, err := p.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && now.UID == pod.UID {
				p.gangs.Restore(key, now)
			}
		}
	}
}

// release marks a pod of a Volcano Job so that no policy of the job acts on its deletion. Any scheduler may patch the status of pods, and
// with it annotations: this takes no further right.
func (p *Plugin) release(ctx context.Context, pod *v1.Pod) error {
	kind := kinds.VolcanoJob{}
	if _, is := kind.Place(pod); !is {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": kind.Release(pod, nil).Annotate}})
	if err != nil {
		return fmt.Errorf("encoding the mark of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
