package story

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The story's example.
const (
	Namespace = "training"
	JobName   = "pytorch-ddp"
	ranks     = 4
	members   = 2
)

func (r *run) install(ctx context.Context) ([]string, error) {
	if err := r.Install(ctx); err != nil {
		return nil, err
	}
	return []string{"kubectl apply --server-side -k manifests; controller, webhook and scheduler answer"}, nil
}

func (r *run) placed(ctx context.Context) ([]string, error) {
	unblock, err := r.Block(ctx, "default", 2)
	if err != nil {
		return nil, err
	}
	if _, err := r.RunKubectl(ctx, "apply", "-k", filepath.Join(r.Source, "examples/pytorch-ddp")); err != nil {
		return nil, err
	}
	if err := r.Until(ctx, "both pods exist", 30*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, JobName)
		return err == nil && len(pods) == members, fmt.Sprintf("%d pods, %v", len(pods), err)
	}); err != nil {
		return nil, err
	}
	r.Say("  a blocker holds two of three nodes; for 10 s neither pod may be bound")
	if err := r.During(ctx, "no pod is bound while one of two fits", 10*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, JobName)
		return err == nil && len(pods) == members && bound(pods) == 0, fmt.Sprintf("%d pods, %d bound, %v", len(pods), bound(pods), err)
	}); err != nil {
		return nil, err
	}
	why, err := r.refusal(ctx)
	if err != nil {
		return nil, err
	}
	freed := time.Now()
	if err := unblock(ctx); err != nil {
		return nil, err
	}
	if err := r.Until(ctx, "both pods bound", 30*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, JobName)
		if n := bound(pods); err == nil && n == 1 && time.Since(freed) > 5*time.Second {
			return false, "only one pod is bound"
		}
		return err == nil && bound(pods) == members, fmt.Sprintf("%d bound", bound(pods))
	}); err != nil {
		return nil, err
	}
	return []string{
		"for 10 s neither pod was bound; the Gang says: " + why,
		"the same stands in an event on the Job",
		fmt.Sprintf("both bound %.1f s after the blocker left", time.Since(freed).Seconds()),
	}, nil
}

// refusal returns why the gang waits, from the Gang, and checks that an event on the Job has the same reason.
func (r *run) refusal(ctx context.Context) (string, error) {
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return "", err
	}
	p := gang.Status.Placement
	if p == nil || p.Placed || p.Reason != v1alpha1.ReasonInsufficientNodes || p.Wanted != members || p.Fits != 1 {
		return "", fmt.Errorf("the Gang does not say that 1 of 2 fits: %+v", p)
	}
	return p.Message, r.Until(ctx, "an event on the Job with the reason", 5*time.Second, func(ctx context.Context) (bool, string) {
		return r.HasEvent(ctx, Namespace, "Job", JobName, v1alpha1.ReasonInsufficientNodes, p.Message)
	})
}

func bound(pods []corev1.Pod) int {
	n := 0
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// ourAnnotation matches a YAML line that sets one of Holdfast's annotations.
var ourAnnotation = regexp.MustCompile(`^\s+` + regexp.QuoteMeta(v1alpha1.Prefix) + `[a-z-]+: `)

// HalfPlaced shows what the stock scheduler does with the same job without Holdfast's annotations: it binds one pod, which holds its GPUs
// and waits for ever.
func HalfPlaced(ctx context.Context, w *World) error {
	w.Say("the same job, without Holdfast, under the stock scheduler")
	if err := w.LoadImages(ctx); err != nil {
		return err
	}
	if _, err := w.Block(ctx, "default", 2); err != nil {
		return err
	}
	dir := filepath.Join(w.Source, "examples/pytorch-ddp")
	out, err := w.RunKubectl(ctx, "kustomize", dir)
	if err != nil {
		return err
	}
	var plain []string
	for line := range strings.Lines(out) {
		if !ourAnnotation.MatchString(line) {
			plain = append(plain, line)
		}
	}
	if _, err := w.KubectlIn(ctx, strings.Join(plain, ""), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := w.Until(ctx, "one pod of two bound", 30*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, Namespace, JobName)
		return err == nil && len(pods) == members && bound(pods) == 1, fmt.Sprintf("%d pods, %d bound", len(pods), bound(pods))
	}); err != nil {
		return err
	}
	if err := w.During(ctx, "half placed", 10*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, Namespace, JobName)
		return err == nil && bound(pods) == 1, fmt.Sprintf("%d bound", bound(pods))
	}); err != nil {
		return err
	}
	table, err := w.RunKubectl(ctx, "get", "pods", "-n", Namespace, "-o", "wide")
	if err != nil {
		return err
	}
	w.Say("half placed for 10 s: one pod holds a node and waits for the other, which cannot come\n%s", table)
	return nil
}
