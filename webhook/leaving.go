package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// budgetsTimeout bounds the read of a namespace's disruption budgets; the API server waits 5 s for the webhook.
const budgetsTimeout = time.Second

// Leaving handles deletions and evictions of pods, and refuses none. Before the deletion of a member begins it hides the pod from a
// controller that would count it as failed at once (kinds.FoundBy). elastic/controller releases it later, as any pod that is being
// deleted, and undoes this where no deletion follows. live reads disruption budgets.
func Leaving(api client.Client, live client.Reader) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		if err := hide(ctx, api, live, req); err != nil {
			log.FromContext(ctx).Error(err, "a pod that is to be deleted was not hidden from its job's controller", "namespace", req.Namespace, "pod", req.Name)
		}
		return admission.Allowed("")
	})
}

func hide(ctx context.Context, api client.Client, live client.Reader, req admission.Request) error {
	pod, err := leavingPod(ctx, api, req)
	if pod == nil || err != nil {
		return err
	}
	_, member := membership.GangOf(pod)
	if _, hides := (kinds.PyTorchJob{}).Place(pod); !hides || !member || membership.Gone(pod) || membership.Ended(pod) {
		return nil
	}
	if req.Operation == admissionv1.Create {
		if counts, err := budgeted(ctx, live, pod); counts || err != nil {
			return err
		}
	}
	// The label may be missing in the cache and be written again just now: the patch is sent in any case.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": map[string]any{kinds.FoundBy: nil}}})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	return client.IgnoreNotFound(api.Patch(ctx, pod, client.RawPatch(types.MergePatchType, body)))
}

// leavingPod is the pod that a request deletes; nil: none. A deletion has the pod in it, one of a collection nowhere else. An eviction
// has its name alone, and members are in the cache.
func leavingPod(ctx context.Context, api client.Reader, req admission.Request) (*corev1.Pod, error) {
	if dry, err := isDryRun(req); dry || err != nil {
		return nil, err
	}
	if req.Operation == admissionv1.Delete {
		return decode[corev1.Pod](req.OldObject.Raw)
	}
	pod := &corev1.Pod{}
	if err := api.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: req.Name}, pod); err != nil {
		return nil, client.IgnoreNotFound(err) // of no gang
	}
	return pod, nil
}

// budgeted reports whether a disruption budget selects the pod by the label that hiding removes: the API server matches budgets against
// the pod after admission, and the budget must count.
func budgeted(ctx context.Context, live client.Reader, pod *corev1.Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, budgetsTimeout)
	defer cancel()
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := live.List(ctx, budgets, client.InNamespace(pod.Namespace)); err != nil {
		return false, fmt.Errorf("reading the disruption budgets: %w", err)
	}
	// The cached pod may be hidden by an eviction that was refused.
	found, hidden := labels.Set(maps.Clone(pod.Labels)), labels.Set(maps.Clone(pod.Labels))
	found[kinds.FoundBy] = pod.Labels[v1alpha1.LabelGang]
	delete(hidden, kinds.FoundBy)
	for i := range budgets.Items {
		selector, err := metav1.LabelSelectorAsSelector(budgets.Items[i].Spec.Selector)
		if err == nil && selector.Matches(found) && !selector.Matches(hidden) {
			return true, nil
		}
	}
	return false, nil
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
