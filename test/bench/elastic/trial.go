package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

//go:embed train.py
var trainScript string

const (
	namespace = "bench-elastic"
	// shared is the claim whose volume has the folders of all jobs.
	shared = "files"
	// stateSize has room for 64 MiB of tensors, and their names.
	stateSize = "68Mi"
	victim    = 1
)

// furnish creates what all jobs share.
func furnish(ctx context.Context, w *harness.World) error {
	room := append(lives.Room(namespace, map[string]string{"train.py": trainScript}),
		harness.Claim(namespace, shared, layout.SharedStorageClass, corev1.ReadWriteMany))
	for _, o := range room {
		if err := w.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// elasticJob is the job under Holdfast. Its pods say when they begin.
func elasticJob(name string) *batchv1.Job {
	folder := lives.StateAt + "/" + name
	line := fmt.Sprintf(`mkdir -p %s; printf '{"bench":"pod","t":%%s}\n' "$EPOCHREALTIME" >>%[1]s/$BENCH_POD.events; `+
		`exec torchrun --nnodes=1:%d --nproc-per-node=%d train.py %[1]s`, folder, pods, ranksEach)
	own := corev1.EnvVar{Name: "BENCH_POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	pod := lives.Pod(name, line, 1, ranksEach, harness.ClaimVolume(shared, false).VolumeSource, own)
	pod.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
	return harness.Job(namespace, name, pods, 0, map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: stateSize, v1alpha1.AnnotationMinPods: "1",
	}, pod)
}

// trial is one job under Holdfast, whose rank is killed, which loses a pod with its node, and takes one in when the node is back.
type trial struct {
	*bench
	*events
	name string
}

func (b *bench) underHoldfast(ctx context.Context, n int) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := fmt.Sprintf("turn-%d", n)
	host, err := b.cluster.SharedPath(ctx, namespace, shared)
	if err != nil {
		return err
	}
	t := &trial{bench: b, events: newEvents(filepath.Join(host, name)), name: name}
	defer func() {
		err = errors.Join(err, lives.Remove(context.WithoutCancel(ctx), b.cluster.World, namespace, name, time.Minute))
	}()
	if err := b.cluster.Client().Create(ctx, elasticJob(name)); err != nil {
		return err
	}
	go t.Follow(ctx, b.cluster.World, namespace, name) // for errors; events are in files
	began := time.Now()
	if _, err := t.wentOn(ctx, "first steps", 3*time.Minute, all, began); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{t.killRank, t.lose, t.join} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	b.account(systemHoldfast, t.Steps())
	return nil
}

// rested waits until each rank has a standby, and the ranks make steps.
func (t *trial) rested(ctx context.Context, world int) error {
	if err := t.cluster.Until(ctx, "a standby for each rank", 3*time.Minute, func(ctx context.Context) (bool, string) {
		run, err := t.run(ctx)
		if err != nil {
			return false, err.Error()
		}
		p := run.Progress
		return run.State == v1alpha1.RunRunning && int(p.Ranks) == world && int(p.StandbysReady) == world,
			fmt.Sprintf("generation %d %s, %d ranks, %d standbys", run.Generation, run.State, p.Ranks, p.StandbysReady)
	}); err != nil {
		return err
	}
	return t.more(ctx, world, before)
}

func (t *trial) run(ctx context.Context) (*v1alpha1.RunStatus, error) {
	return lives.Run(ctx, t.cluster.World, namespace, t.name)
}

// killRank measures the limit: a rank is killed, and all pods are there.
func (t *trial) killRank(ctx context.Context) error {
	if err := t.rested(ctx, all); err != nil {
		return err
	}
	pod, inside, _ := t.Newest(victim)
	pid, err := t.cluster.HostPID(ctx, namespace, pod, lives.Container, inside)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing rank %d: %w", victim, err)
	}
	c, err := t.wentOn(ctx, "steps after the kill of a rank", 2*time.Minute, all, at)
	if err != nil {
		return err
	}
	t.lost(systemLimit, at, at, c)
	t.say("%s: rank %d killed: %.2f s to the first new step, %d steps again", systemLimit, victim, c.first.Sub(at).Seconds(), c.again)
	return nil
}

// node is the one that is lost.
func (t *trial) node() *devcluster.Node { return t.cluster.Nodes()[pods-1] }

// lose kills everything on a node. If it fails, the node is started again, so that the next turn has all.
func (t *trial) lose(ctx context.Context) (err error) {
	if err := t.rested(ctx, all); err != nil {
		return err
	}
	at := time.Now()
	if err := t.node().Kill(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.node().Revive())
		}
	}()
	c, err := t.wentOn(ctx, "steps of the ranks that are left", 3*time.Minute, fewer, at)
	if err != nil {
		return err
	}
	detected, err := t.detected(ctx, at)
	if err != nil {
		return err
	}
	t.lost(systemHoldfast, at, detected, c)
	t.say("%s: node lost: detected after %.2f s, first new step %.2f s later, %d steps again", systemHoldfast, detected.Sub(at).Seconds(),
		c.first.Sub(detected).Seconds(), c.again)
	return t.more(ctx, fewer, between)
}

// detected is when the loss was certain: the pod was given up.
func (t *trial) detected(ctx context.Context, after time.Time) (at time.Time, err error) {
	err = eventually.Wait(ctx, "the recovery on the Gang", 20*time.Second, func(ctx context.Context) (bool, any) {
		run, err := t.run(ctx)
		if err != nil || len(run.Recoveries) == 0 {
			return false, err
		}
		r := run.Recoveries[len(run.Recoveries)-1]
		at = r.DetectedAt.Time
		for _, p := range r.Replaced {
			if p.ReleasedAt != nil {
				at = lives.Later(at, p.ReleasedAt.Time)
			}
		}
		return at.After(after) && r.FirstStepMs != nil, fmt.Sprintf("%+v", r)
	})
	return at, err
}

// join starts the node again, whose pod joins.
func (t *trial) join(ctx context.Context) error {
	at := time.Now()
	if err := t.node().Revive(); err != nil {
		return err
	}
	c, err := t.wentOn(ctx, "steps with the pod that joins", 4*time.Minute, all, at)
	if err != nil {
		return err
	}
	t.joined(systemHoldfast, t.LastBorn(), c)
	t.say("%s: node back after %.1f s: pod began, %.2f s to its first step, of these %.2f s without a step, %d steps again", systemHoldfast,
		t.LastBorn().Sub(at).Seconds(), c.first.Sub(t.LastBorn()).Seconds(), c.first.Sub(c.last).Seconds(), c.again)
	return t.more(ctx, all, between)
}
