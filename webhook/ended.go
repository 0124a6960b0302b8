package webhook

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/internal/membership"
)

// Ended handles the reports of kubelets that a pod has failed, and refuses none. A member that failed because of its node is released from
// its job before the report is stored, because the job's controller reacts to the failure at once.
func Ended(release func(ctx context.Context, failed *corev1.Pod) error) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		if err := releaseEnded(ctx, release, req); err != nil {
			log.FromContext(ctx).Error(err, "a pod that its node ended was not released from its job", "namespace", req.Namespace, "pod", req.Name)
		}
		return admission.Allowed("")
	})
}

func releaseEnded(ctx context.Context, release func(context.Context, *corev1.Pod) error, req admission.Request) error {
	if ptr.Deref(req.DryRun, false) {
		return nil
	}
	before, err := decode[corev1.Pod](req.OldObject.Raw)
	if err != nil {
		return err
	}
	pod, err := decode[corev1.Pod](req.Object.Raw)
	if err != nil {
		return err
	}
	_, member := membership.GangOf(before)
	if !member || membership.Ended(before) || pod.Status.Phase != corev1.PodFailed || !membership.NodeEnds(pod.Status) {
		return nil
	}
	// A report can change the status alone. Admission sees the rest as its sender wrote it, so the stored pod counts.
	before.Status = pod.Status
	return release(ctx, before)
}
