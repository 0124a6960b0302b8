package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

const namespace = "bench-check"

// script is what the ranks run after the check.
const script = `
import time
print("trains", flush=True)
time.sleep(3600)
`

// limit is how long a check is waited for.
const limit = 5 * time.Minute

// furnish creates what all jobs share.
func (b *bench) furnish(ctx context.Context) error {
	for _, o := range lives.Room(namespace, map[string]string{"plain.py": script}) {
		if err := b.w.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// underHoldfast starts a gang once.
func (b *bench) underHoldfast(ctx context.Context, kase, system, name string) (err error) {
	defer func() {
		err = errors.Join(err, lives.Remove(context.WithoutCancel(ctx), b.w, namespace, name, time.Minute))
	}()
	line := fmt.Sprintf("torchrun --nnodes=%d --nproc-per-node=%d plain.py", pods, ranks)
	spec := lives.Pod(name, line, 1, 0, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	annotations := map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStandbys: "off", v1alpha1.AnnotationNodeCheck: v1alpha1.NodeCheckOff,
	}
	if system == systemHoldfast {
		annotations[v1alpha1.AnnotationNodeCheck] = v1alpha1.NodeCheckAlways
	}
	job := harness.Job(namespace, name, pods, 0, annotations, spec)
	began := time.Now()
	if err := b.w.Client().Create(ctx, job); err != nil {
		return err
	}
	var run *v1alpha1.RunStatus
	if err := b.w.Until(ctx, name+" runs", limit, func(ctx context.Context) (bool, string) {
		if run, err = lives.Run(ctx, b.w, namespace, name); err != nil {
			return false, err.Error()
		}
		return run.StartedAt != nil, fmt.Sprintf("%s, check %+v", run.State, run.NodeCheck)
	}); err != nil {
		return err
	}
	start := run.StartedAt.Sub(began).Seconds()
	if system == systemUnchecked {
		b.Add(kase, system, startTime, "s", start)
		b.say("%s, %s: started after %.1f s", kase, system, start)
		return nil
	}
	check := run.NodeCheck
	if check == nil || check.EndedAt == nil || check.Result != "Passed" {
		return fmt.Errorf("the check of healthy pods: %+v", check)
	}
	took := check.EndedAt.Sub(check.StartedAt.Time).Seconds()
	b.Add(kase, system, startTime, "s", start)
	b.Add(kase, system, checkTime, "s", took)
	b.say("%s, %s: checked in %.1f s, started after %.1f s", kase, system, took, start)
	return nil
}
