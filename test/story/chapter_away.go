package story

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// awayFor is how long the control plane is unavailable.
const awayFor = time.Minute

const controllerName = "holdfast-controller"

func (w *World) scale(ctx context.Context, replicas int32) error {
	s, err := w.Kube().AppsV1().Deployments(v1alpha1.Namespace).GetScale(ctx, controllerName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Spec.Replicas = replicas
	_, err = w.Kube().AppsV1().Deployments(v1alpha1.Namespace).UpdateScale(ctx, controllerName, s, metav1.UpdateOptions{})
	return err
}

func (w *World) controllerPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := w.Kube().CoreV1().Pods(v1alpha1.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + controllerName})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (r *run) controllerAway(ctx context.Context) ([]string, error) {
	before, err := r.gang(ctx, JobName)
	if err != nil {
		return nil, err
	}
	generation, step := before.Status.Run.Generation, r.steps.Lowest(ranks)
	late := lateJob()
	if err := r.Client().Create(ctx, late); err != nil {
		return nil, err
	}
	if err := r.scale(ctx, 0); err != nil {
		return nil, err
	}
	if err := r.Until(ctx, "no controller pod left", 40*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := r.controllerPods(ctx)
		return err == nil && len(pods) == 0, fmt.Sprintf("%d pods", len(pods))
	}); err != nil {
		return nil, err
	}
	gone, printed := time.Now(), r.steps.Count()
	r.Say("  the controller is away; the undisturbed run starts on this machine meanwhile")
	r.compareLater(ctx)
	saw, err := r.othersWhileAway(ctx)
	if err != nil {
		return saw, err
	}
	if err := r.lateWaits(ctx, late); err != nil {
		return saw, err
	}
	if err := r.Until(ctx, "training goes on for most of the minute", 2*awayFor, func(context.Context) (bool, string) {
		return time.Since(gone) > awayFor-10*time.Second, ""
	}); err != nil {
		return saw, err
	}
	went, stood := r.steps.Lowest(ranks)-step, r.steps.LongestPause(printed)
	if went < 20 || stood > 20*time.Second {
		return saw, fmt.Errorf("only %d steps went by while the controller was away, and for %s none did", went, stood)
	}
	saw = append(saw, fmt.Sprintf("%d steps went by without a controller, the longest pause was %.1f s", went, stood.Seconds()))
	n := r.steps.Count()
	if err := r.killRank(ctx, 3, "rank 3, while the controller is away"); err != nil {
		return saw, err
	}
	time.Sleep(time.Until(gone.Add(awayFor)))
	if pods, err := r.Pods(ctx, Namespace, late.Name); err != nil || len(pods) > 0 {
		return saw, fmt.Errorf("%d pods of job %s were created while no webhook could inject them, %v", len(pods), late.Name, err)
	}
	r.late = begin(func() ([]string, error) { return r.lateComes(ctx, late) })
	if err := r.scale(ctx, 2); err != nil {
		return saw, err
	}
	if err := r.Available(ctx, controllerName); err != nil {
		return saw, err
	}
	if err := r.resumed(ctx, generation, n, 2*time.Minute); err != nil {
		return saw, err
	}
	saw = append(saw, "the failure meanwhile was repaired when it was back")
	leader, err := r.deleteLeader(ctx)
	if err != nil {
		return saw, err
	}
	return append(saw, leader), r.samePods(ctx)
}

// othersWhileAway creates a pod without Holdfast and a job with it, while the webhook is unavailable.
func (r *run) othersWhileAway(ctx context.Context) ([]string, error) {
	zero := int64(0)
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "not-ours", Namespace: "default"}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &zero,
		Containers: []corev1.Container{{Name: "sleep", Image: layout.BaseImage, Command: []string{"sleep", "600"}}}}}
	if err := r.Client().Create(ctx, plain); err != nil {
		return nil, fmt.Errorf("other people's pods must be created while the webhook is away: %w", err)
	}
	if err := r.Until(ctx, "other people's pod runs", 30*time.Second, func(ctx context.Context) (bool, string) {
		err := r.Client().Get(ctx, client.ObjectKeyFromObject(plain), plain)
		return err == nil && plain.Status.Phase == corev1.PodRunning, string(plain.Status.Phase)
	}); err != nil {
		return nil, err
	}
	out, err := r.RunKubectl(ctx, "apply", "-k", filepath.Join(r.Source, "examples/pytorch-unchanged"))
	if err == nil {
		return nil, fmt.Errorf("an opted-in job was admitted without the webhook: %s", out)
	}
	return []string{"other people's pods were created and ran", "an opted-in job was refused until the webhook was back, instead of running without protection"},
		r.Client().Delete(ctx, plain)
}

// lateWaits resumes a job that was admitted before. While the webhook is unavailable its pods are refused, not created without protection.
func (r *run) lateWaits(ctx context.Context, late *batchv1.Job) error {
	if err := r.Client().Patch(ctx, late, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))); err != nil {
		return fmt.Errorf("resuming job %s while the webhook is away: %w", late.Name, err)
	}
	return r.Until(ctx, "a pod of job "+late.Name+" is refused", time.Minute, func(ctx context.Context) (bool, string) {
		return r.HasEvent(ctx, Namespace, "Job", late.Name, "FailedCreate", "pods.holdfast.dev")
	})
}

// lateComes waits until the pod of that job exists with injected containers, and runs. The Job controller waits longer after each refusal.
func (r *run) lateComes(ctx context.Context, late *batchv1.Job) ([]string, error) {
	if err := r.Until(ctx, "the pod of job "+late.Name+" runs", 3*time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, late.Name)
		if err != nil || len(pods) == 0 {
			return false, fmt.Sprintf("no pod, %v", err)
		}
		return pods[0].Annotations[v1alpha1.AnnotationInjected] != "" &&
			pods[0].Status.Phase == corev1.PodRunning, fmt.Sprintf("%s, %v", pods[0].Status.Phase, pods[0].Annotations)
	}); err != nil {
		return nil, err
	}
	return []string{"an opted-in job that was resumed while the webhook was away got no pod then, and an injected one afterwards"},
		r.Client().Delete(ctx, late, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// deleteLeader deletes the leading controller pod, and checks that training is not disturbed.
func (r *run) deleteLeader(ctx context.Context) (string, error) {
	leader, err := r.Leader(ctx, controllerName)
	if err != nil {
		return "", err
	}
	if leader == nil {
		return "", fmt.Errorf("no pod holds lease %s", controllerName)
	}
	before, err := r.gang(ctx, JobName)
	if err != nil {
		return "", err
	}
	step := r.steps.Lowest(ranks)
	if err := r.Client().Delete(ctx, leader); err != nil {
		return "", err
	}
	if err := r.Until(ctx, "another leader, 20 more steps", time.Minute, func(ctx context.Context) (bool, string) {
		next, err := r.Leader(ctx, controllerName)
		if err != nil || next == nil {
			return false, fmt.Sprintf("no leader, %v", err)
		}
		return next.Name != leader.Name && r.steps.Lowest(ranks) >= step+20, fmt.Sprintf("leader %s, step %d", next.Name, r.steps.Lowest(ranks))
	}); err != nil {
		return "", err
	}
	after, err := r.gang(ctx, JobName)
	if err != nil {
		return "", err
	}
	if after.Status.Run.Generation != before.Status.Run.Generation {
		return "", fmt.Errorf("a new leader made generation %d of %d", after.Status.Run.Generation, before.Status.Run.Generation)
	}
	return "the leading controller pod was deleted: 20 steps went by, the generation is the same", nil
}
