package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
)

// trainer is one job and the output of its pods.
type trainer struct {
	r     *real
	job   string
	rec   *lives.Record
	limit time.Duration      // how long a fault may stop training
	stop  context.CancelFunc // stops following its pods
}

// train creates a job and follows its present and future pods.
func (r *real) train(ctx context.Context, job string) (*trainer, error) {
	if err := r.Client().Create(ctx, trainJob(job)); err != nil {
		return nil, fmt.Errorf("creating job %s: %w", job, err)
	}
	t := &trainer{r: r, job: job, rec: lives.New(), limit: stepLimit}
	ctx, t.stop = context.WithCancel(r.ctx)
	go t.rec.Follow(ctx, r.World, roomName, job)
	return t, nil
}

// holdfast returns the job with Holdfast's annotations, the same for all cases, once it trains and has a step in storage.
func (r *real) holdfast(ctx context.Context) (*trainer, error) {
	if r.trainer != nil {
		return r.trainer, nil
	}
	t, err := r.train(ctx, jobHoldfast)
	if err != nil {
		return nil, err
	}
	if _, err := t.steady(ctx); err != nil {
		return nil, err
	}
	if err := t.stored(ctx, 0); err != nil {
		return nil, err
	}
	r.trainer = t
	return t, nil
}

// steady waits until the job trains, under Holdfast with a warm standby for every rank, and returns the time of a step.
func (t *trainer) steady(ctx context.Context) (stepMs float64, err error) {
	from := time.Now().Add(time.Second)
	err = t.r.Until(ctx, t.job+" trains", stepLimit, func(ctx context.Context) (bool, string) {
		rate, ok := t.rec.RateAfter(from)
		stepMs = rate.StepMs
		if !ok || t.job != jobHoldfast {
			return ok, t.rec.Progress(ranks, time.Time{})
		}
		run, err := t.run(ctx)
		if err != nil {
			return false, err.Error()
		}
		warm := run.Progress.StandbysReady
		return run.State == v1alpha1.RunRunning && len(run.PendingReplacements) == 0 && warm == ranks,
			fmt.Sprintf("generation %d %s, %d to be replaced, %d of %d standbys", run.Generation, run.State, len(run.PendingReplacements), warm, ranks)
	})
	if err != nil {
		return 0, fmt.Errorf("%w; last lines: %q", err, t.rec.Tail(8))
	}
	return stepMs, nil
}

// stored waits until a step of the present generation is complete in storage and has reached the given age.
func (t *trainer) stored(ctx context.Context, age time.Duration) error {
	return t.r.Until(ctx, "a step in storage", stepLimit, func(ctx context.Context) (bool, string) {
		run, err := t.run(ctx)
		if err != nil {
			return false, err.Error()
		}
		d := run.Durable
		return d != nil && d.Generation == run.Generation && time.Since(d.At.Time) >= age, fmt.Sprintf("generation %d, %+v", run.Generation, d)
	})
}

func (t *trainer) run(ctx context.Context) (*v1alpha1.RunStatus, error) {
	return lives.Run(ctx, t.r.World, roomName, t.job)
}

// generation is the newest in the Gang's status; 0 for a job without one.
func (t *trainer) generation(ctx context.Context) (int64, error) {
	if t.job != jobHoldfast {
		return 0, nil
	}
	run, err := t.run(ctx)
	if err != nil {
		return 0, err
	}
	return run.Generation, nil
}

// recovery is the record of the recovery after a generation, once it is complete.
func (t *trainer) recovery(ctx context.Context, after int64) (*v1alpha1.Recovery, error) {
	var out *v1alpha1.Recovery
	err := t.r.Until(ctx, "the recovery on the Gang", time.Minute, func(ctx context.Context) (bool, string) {
		run, err := t.run(ctx)
		if err != nil {
			return false, err.Error()
		}
		if len(run.Recoveries) == 0 {
			return false, "none"
		}
		out = &run.Recoveries[len(run.Recoveries)-1]
		return out.Generation > after && out.FirstStepMs != nil && len(out.Replaced) > 0, fmt.Sprintf("%+v", out)
	})
	return out, err
}

// members are the pods of the job that hold its slots, by slot.
func (t *trainer) members(ctx context.Context) ([]corev1.Pod, error) {
	all, err := t.r.Pods(ctx, roomName, t.job)
	if err != nil {
		return nil, err
	}
	out := make([]corev1.Pod, pods)
	for _, p := range all {
		i := slices.Index([]string{"0", "1"}, p.Annotations[batchv1.JobCompletionIndexAnnotation])
		if i >= 0 && p.Labels[v1alpha1.LabelReplaced] == "" && p.DeletionTimestamp == nil {
			out[i] = p
		}
	}
	for i, p := range out {
		if p.Spec.NodeName == "" {
			return nil, fmt.Errorf("%s has no pod on a node in slot %d", t.job, i)
		}
	}
	return out, nil
}

// pick returns a node of the job, preferably none of the unwanted; of several the one with the last slot.
func (t *trainer) pick(ctx context.Context, unwanted []string) (string, error) {
	members, err := t.members(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range slices.Backward(members) {
		if !slices.Contains(unwanted, p.Spec.NodeName) {
			return p.Spec.NodeName, nil
		}
	}
	node := members[pods-1].Spec.NodeName
	t.r.Say("  every node of the job is one of %s: %s it is", strings.Join(unwanted, ", "), node)
	return node, nil
}

// podStart creates a bare pod and returns the time until its process's first line.
func (r *real) podStart(ctx context.Context, name string) (time.Duration, error) {
	began := time.Now()
	if err := r.Client().Create(ctx, barePod(name)); err != nil {
		return 0, err
	}
	if err := r.Until(ctx, "pod "+name+" runs", stepLimit, func(ctx context.Context) (bool, string) {
		p, err := r.Kube().CoreV1().Pods(roomName).Get(ctx, name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, fmt.Sprintf("%v, %v", p.Status, err)
	}); err != nil {
		return 0, err
	}
	rec := lives.New()
	following, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_ = r.Follow(following, roomName, name, lives.Container, func(line string) { rec.Line(name, line) })
	}()
	var born time.Time
	if err := r.Until(ctx, "first line of pod "+name, stepLimit, func(context.Context) (bool, string) {
		var ok bool
		born, ok = rec.PodBorn(name)
		return ok, fmt.Sprintf("%q", rec.Tail(1))
	}); err != nil {
		return 0, err
	}
	if err := r.Kube().CoreV1().Pods(roomName).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		return 0, err
	}
	return born.Sub(began), nil
}

// remove stops following a job and deletes it.
func (r *real) remove(ctx context.Context, t *trainer) error {
	t.stop()
	return lives.Remove(ctx, r.World, roomName, t.job, stepLimit)
}
