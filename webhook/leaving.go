package webhook

import (
	"context"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// Leaving handles deletions and evictions of pods, and refuses none. Before the deletion of a member begins it hides the pod from a
// controller that would count it as failed at once (kinds.FoundBy). elastic/controller releases it later, as any pod that is being
// deleted, and undoes this where no deletion follows.
func Leaving(api client.Client) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		if err := hide(ctx, api, req); err != nil {
			log.FromContext(ctx).Error(err, "a pod that is to be deleted was not hidden from its job's controller", "namespace", req.Namespace, "pod", req.Name)
		}
		return admission.Allowed("")
	})
}

func hide(ctx context.Context, api client.Client, req admission.Request) error {
	if dry, err := isDryRun(req); dry || err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if err := api.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: req.Name}, pod); err != nil {
		return client.IgnoreNotFound(err) // of no gang
	}
	if _, member := membership.GangOf(pod); !member || membership.Gone(pod) || membership.Ended(pod) || pod.Labels[kinds.FoundBy] == "" {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": map[string]any{kinds.FoundBy: nil}}})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	return client.IgnoreNotFound(api.Patch(ctx, pod, client.RawPatch(types.MergePatchType, body)))
}

// isDryRun says whether nothing is to be deleted; an eviction has options of its own.
func isDryRun(req admission.Request) (bool, error) {
	if ptr.Deref(req.DryRun, false) {
		return true, nil
	}
	if req.Operation != admissionv1.Create {
		return false, nil
	}
	e, err := decode[policyv1.Eviction](req.Object.Raw)
	return err == nil && e.DeleteOptions != nil && len(e.DeleteOptions.DryRun) > 0, err
}
