package story

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

// The slots whose nodes fail: each time another one, so that at last both pods have moved.
const (
	sickSlot    = 1
	drainedSlot = 0
)

// gpuLost makes a GPU fall off the bus under one pod: that pod moves to the spare node, the other keeps its container.
func (r *run) gpuLost(ctx context.Context) ([]string, error) {
	node, err := r.nodeOf(ctx, sickSlot)
	if err != nil {
		return nil, err
	}
	tainted := make(chan time.Duration, 1)
	moved, err := r.replaced(ctx, sickSlot, "a GPU falls off the bus on "+node, func(ctx context.Context) error {
		began := time.Now()
		if _, err := r.RunDev(ctx, "node", "fail", node, "--gpu", "0", "--xid", "79", "--lost"); err != nil {
			return err
		}
		return r.Until(ctx, "node "+node+" has its taint", 30*time.Second, func(ctx context.Context) (bool, string) {
			cause, err := r.taint(ctx, node, v1alpha1.TaintUnhealthy)
			if cause != "" {
				tainted <- time.Since(began)
			}
			return cause != "", fmt.Sprint("no taint, ", err)
		})
	})
	if err != nil {
		return nil, err
	}
	if _, err := r.RunDev(ctx, "node", "heal", node); err != nil {
		return nil, err
	}
	mended := time.Now()
	r.well = begin(func() ([]string, error) { return r.heals(ctx, node, mended) })
	return []string{
		fmt.Sprintf("Xid 79 → taint %s on %s after %.2f s", v1alpha1.TaintUnhealthy, node, (<-tainted).Seconds()),
		moved,
	}, nil
}

// heals waits until the taints of a node are removed. The daemon removes its own taint. The controller is unavailable meanwhile, and
// removes the taint of its decision later.
func (r *run) heals(ctx context.Context, node string, mended time.Time) ([]string, error) {
	gone := func(what string, keys ...string) (time.Duration, error) {
		err := r.Until(ctx, what, 4*time.Minute, func(ctx context.Context) (bool, string) {
			cause, err := r.taint(ctx, node, keys...)
			return cause == "" && err == nil, fmt.Sprintf("still %q, %v", cause, err)
		})
		return time.Since(mended), err
	}
	daemon, err := gone("the daemon takes its taint of node "+node+" back", v1alpha1.TaintUnhealthy)
	if err != nil {
		return nil, err
	}
	whole, err := gone("no taint of Holdfast is left on node "+node, v1alpha1.TaintUnhealthy, v1alpha1.TaintOutage)
	return []string{fmt.Sprintf("the daemon of %s removed its taint %.0f s after the GPU was back; the controller, away meanwhile, that of its decision after %.0f s",
		node, daemon.Seconds(), whole.Seconds())}, err
}

// healed reports the result of heals, which began at the end of gpuLost and ran while the controller was unavailable.
func (r *run) healed(ctx context.Context) ([]string, error) { return r.well.end(ctx) }

// drained drains a healthy node as its owner would.
func (r *run) drained(ctx context.Context) ([]string, error) {
	node, err := r.nodeOf(ctx, drainedSlot)
	if err != nil {
		return nil, err
	}
	drain := make(chan error, 1)
	moved, err := r.replaced(ctx, drainedSlot, "kubectl drain "+node, func(context.Context) error {
		go func() {
			_, err := r.RunKubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")
			drain <- err
		}()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := <-drain; err != nil {
		return nil, err
	}
	if _, err := r.RunKubectl(ctx, "uncordon", node); err != nil {
		return nil, err
	}
	last, err := r.lastRecovery(ctx)
	if err != nil {
		return nil, err
	}
	if ptr.Deref(last.StepsRecomputed, -1) != 0 {
		return nil, fmt.Errorf("a planned drain cost %d steps: from step %d", ptr.Deref(last.StepsRecomputed, -1), last.RestoreStep)
	}
	return []string{moved, "0 steps were computed again"}, r.endPauses(ctx)
}

// endPauses ends the pauses between the ranks' steps, which had left time for all failures.
func (r *run) endPauses(ctx context.Context) error {
	for rank := range ranks {
		inside, err := r.pidOf(rank)
		if err != nil {
			return err
		}
		pod := r.pods[rank/(ranks/members)]
		p, err := r.Find(ctx, Namespace, pod, Training, harness.Numbered(inside))
		if err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGUSR1); err != nil {
			return err
		}
	}
	return nil
}

// replaced causes the loss of one pod's node and waits until training resumes with a new pod in its place and all else unchanged.
func (r *run) replaced(ctx context.Context, slot int, what string, cause func(context.Context) error) (string, error) {
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return "", err
	}
	before, err := r.members(ctx)
	if err != nil {
		return "", err
	}
	above, n := gang.Status.Run.Generation, r.steps.Count()
	r.Say("  %s", what)
	r.kills = append(r.kills, kill{what: what, at: time.Now(), after: above})
	if err := cause(ctx); err != nil {
		return "", err
	}
	if err := r.Until(ctx, "another pod in slot "+fmt.Sprint(slot), 90*time.Second, func(ctx context.Context) (bool, string) {
		now, err := r.members(ctx)
		if err != nil || now[slot].UID == before[slot].UID || now[slot].Status.Phase != corev1.PodRunning {
			return false, fmt.Sprintf("%s %s on %q, %v", now[slot].Name, now[slot].Status.Phase, now[slot].Spec.NodeName, err)
		}
		return true, ""
	}); err != nil {
		return "", fmt.Errorf("%w; %s", err, r.says(context.WithoutCancel(ctx)))
	}
	after, err := r.members(ctx)
	if err != nil {
		return "", err
	}
	r.pods[slot], r.uids[slot] = after[slot].Name, string(after[slot].UID)
	r.follow(ctx, r.pods[slot], r.steps)
	if err := r.resumed(ctx, above, n, 2*time.Minute); err != nil {
		return "", err
	}
	if err := r.unharmed(ctx); err != nil {
		return "", err
	}
	last, err := r.lastRecovery(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(
		"%s on %s was replaced by %s on %s; the other pod kept its container; from step %d, %d steps again",
		before[slot].Name,
		before[slot].Spec.NodeName,
		after[slot].Name,
		after[slot].Spec.NodeName,
		last.RestoreStep,
		ptr.Deref(last.StepsRecomputed, -1),
	), nil
}

// says returns the status of the Job and the Gang.
func (r *run) says(ctx context.Context) string {
	var job batchv1.Job
	if err := r.Client().Get(ctx, client.ObjectKey{Namespace: Namespace, Name: JobName}, &job); err != nil {
		return err.Error()
	}
	told := fmt.Sprintf("the Job counts %d failed, %d terminating", job.Status.Failed, ptr.Deref(job.Status.Terminating, 0))
	for _, c := range job.Status.Conditions {
		told += fmt.Sprintf("; %s: %s: %s", c.Type, c.Reason, c.Message)
	}
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return told + "; " + err.Error()
	}
	told += "; its Gang is " + string(gang.Status.Phase)
	for _, c := range gang.Status.Conditions {
		told += fmt.Sprintf("; %s %s: %s", c.Type, c.Status, c.Message)
	}
	return told
}

// unharmed fails if another pod was replaced, or if the Job counted a failure.
func (r *run) unharmed(ctx context.Context) error {
	if err := r.samePods(ctx); err != nil {
		return err
	}
	var job batchv1.Job
	if err := r.Client().Get(ctx, client.ObjectKey{Namespace: Namespace, Name: JobName}, &job); err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	if job.Status.Failed != 0 {
		return fmt.Errorf("the Job counted %d failed pods", job.Status.Failed)
	}
	return nil
}

// members are the pods of the job that hold its slots, by slot; an empty slot has the zero value.
func (r *run) members(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := r.Pods(ctx, Namespace, JobName)
	out := make([]corev1.Pod, members)
	for _, p := range pods {
		if i := slot(p); p.Labels[v1alpha1.LabelReplaced] == "" && p.DeletionTimestamp == nil && i < len(out) {
			out[i] = p
		}
	}
	return out, err
}

func (r *run) nodeOf(ctx context.Context, slot int) (string, error) {
	pods, err := r.members(ctx)
	if err != nil {
		return "", err
	}
	if pods[slot].Spec.NodeName == "" {
		return "", fmt.Errorf("no pod in slot %d is on a node", slot)
	}
	return pods[slot].Spec.NodeName, nil
}

// taint is the value of a node's first taint with one of the keys; "": none.
func (w *World) taint(ctx context.Context, node string, keys ...string) (string, error) {
	n, err := w.Kube().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading node %s: %w", node, err)
	}
	i := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return slices.Contains(keys, t.Key)
	})
	if i < 0 {
		return "", nil
	}
	return n.Spec.Taints[i].Value, nil
}

func (r *run) lastRecovery(ctx context.Context) (v1alpha1.Recovery, error) {
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return v1alpha1.Recovery{}, err
	}
	recoveries := gang.Status.Run.Recoveries
	if len(recoveries) == 0 {
		return v1alpha1.Recovery{}, fmt.Errorf("the Gang has no recovery")
	}
	return recoveries[len(recoveries)-1], nil
}
