package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

// trial is one job, and what its ranks reported.
type trial struct {
	*bench
	kind     kind
	system   string
	name     string
	manifest string
	rec      *lives.Record
	// events is the file of the ranks' reports on this machine, "" before it is known; read is how much of it is in the record.
	events string
	read   int64
	// generation is the Gang's before the last fault.
	generation int64
}

// faults causes all faults of one kind under one system. A job that does not train again is replaced by a new one.
func (b *bench) faults(ctx context.Context, k kind, system string) (err error) {
	var t *trial
	defer func() {
		if t != nil {
			err = errors.Join(err, t.remove(context.WithoutCancel(ctx)))
		}
	}()
	for i := range b.repeats() + 1 {
		if t == nil {
			if t, err = b.begin(ctx, k, system, i); err != nil {
				return err
			}
		}
		var again bool
		if i < b.repeats() {
			again, err = t.suffer(ctx, rankKilled, t.killRank)
		} else {
			again, err = t.loseNode(ctx)
		}
		if err != nil {
			return err
		}
		if !again {
			err, t = t.remove(ctx), nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin creates a job and waits until it trains. The trial is returned with an error, too, so that the job is removed.
func (b *bench) begin(ctx context.Context, k kind, system string, n int) (*trial, error) {
	t := &trial{bench: b, kind: k, system: system, rec: lives.New()}
	t.name = fmt.Sprintf("%s-%s-%d", strings.ToLower(strings.ReplaceAll(k.name, " ", "-")), system, n)
	var err error
	if t.manifest, err = k.manifest(system, t.name, b.Nodes()[0].Name); err != nil {
		return nil, err
	}
	if _, err := b.KubectlIn(ctx, t.manifest, "create", "-n", namespace, "-f", "-"); err != nil {
		return nil, err
	}
	began := time.Now()
	resumed, err := t.trains(ctx, time.Time{}, startLimit)
	if err == nil {
		b.Say("  %s trains after %.1f s", t.name, resumed.Stepped.Sub(began).Seconds())
	}
	return t, err
}

// trains waits until all ranks have made a new step in processes that were started after a time.
func (t *trial) trains(ctx context.Context, after time.Time, limit time.Duration) (resumed lives.Resumption, err error) {
	err = t.Until(ctx, t.name+" trains", limit, func(ctx context.Context) (ok bool, seen string) {
		if err := t.collect(ctx); err != nil {
			return false, err.Error()
		}
		resumed, ok = t.rec.Resumed(ranks, after)
		return ok, t.rec.Progress(ranks, after)
	})
	return resumed, err
}

// collect records what the ranks reported since the last call.
func (t *trial) collect(ctx context.Context) error {
	if t.events == "" {
		folder, err := t.SharedPath(ctx, namespace, state)
		if err != nil {
			return err
		}
		t.events = filepath.Join(folder, t.name, "events")
	}
	file, err := os.Open(t.events)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, t.read, 1<<30))
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	t.read += int64(len(text))
	for line := range bytes.Lines(text) {
		var of struct{ Pod string }
		if err := json.Unmarshal(line, &of); err != nil {
			return fmt.Errorf("%s: %w", t.events, err)
		}
		t.rec.Line(of.Pod, string(line))
	}
	return nil
}

// steady waits until the job makes steps, under Holdfast with a standby for each rank.
func (t *trial) steady(ctx context.Context) error {
	from := time.Now().Add(time.Second)
	return t.Until(ctx, t.name+" is steady", startLimit, func(ctx context.Context) (bool, string) {
		if err := t.collect(ctx); err != nil {
			return false, err.Error()
		}
		_, ok := t.rec.RateAfter(from)
		if !ok || t.system == systemOwn {
			return ok, t.rec.Progress(ranks, time.Time{})
		}
		run, err := lives.Run(ctx, t.World, namespace, t.name)
		if err != nil {
			return false, err.Error()
		}
		ready := run.Generation > t.generation && run.State == v1alpha1.RunRunning && len(run.PendingReplacements) == 0 &&
			run.Progress.StandbysReady == ranks
		if ready {
			t.generation = run.Generation
		}
		return ready, fmt.Sprintf("generation %d %s, %d to be replaced, %d standbys", run.Generation, run.State, len(run.PendingReplacements),
			run.Progress.StandbysReady)
	})
}

// suffer causes a fault, which returns its time, and records when the job trains again. A job without Holdfast may not do so in time, which
// is a figure, too.
func (t *trial) suffer(ctx context.Context, fault string, cause func(context.Context) (time.Time, error)) (again bool, err error) {
	if err := t.steady(ctx); err != nil {
		return false, err
	}
	at, err := cause(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", fault, err)
	}
	limit := recoverLimit
	if t.system == systemOwn {
		limit = t.ownLimit()
	}
	resumed, err := t.trains(ctx, at, limit)
	switch {
	case err == nil:
		took := resumed.Stepped.Sub(at).Seconds()
		t.Add(t.kind.name, t.system, fault+toStep, "s", took)
		t.Say("  %s: %.2f s to the first new step of the last rank", fault, took)
		return true, nil
	case ctx.Err() != nil || t.system != systemOwn:
		return false, fmt.Errorf("%s: %w", fault, err)
	}
	t.Add(t.kind.name, t.system, fault+notWithin, "s", limit.Seconds())
	t.Say("  %s: %v", fault, err)
	return false, nil
}

// killRank kills the process of the last rank.
func (t *trial) killRank(ctx context.Context) (time.Time, error) {
	pod, pid, _ := t.rec.Newest(ranks - 1)
	return t.Kill(ctx, namespace, pod, t.kind.container, harness.Numbered(pid))
}

// loseNode kills everything on the node of the last rank, and revives the node afterwards.
func (t *trial) loseNode(ctx context.Context) (again bool, err error) {
	name, _, _ := t.rec.Newest(ranks - 1)
	pod, err := t.Kube().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	node := t.Node(pod.Spec.NodeName)
	again, err = t.suffer(ctx, nodeLost, func(context.Context) (time.Time, error) {
		at := time.Now()
		return at, node.Kill()
	})
	return again, errors.Join(err, node.Revive(), t.Well(context.WithoutCancel(ctx), node.Name))
}

// remove deletes the job and waits until no pod is left, so that the next job has the machine to itself.
func (t *trial) remove(ctx context.Context) error {
	if _, err := t.KubectlIn(ctx, t.manifest, "delete", "-n", namespace, "--wait=false", "-f", "-"); err != nil {
		return err
	}
	return t.Until(ctx, "the pods of "+t.name+" are gone", startLimit, func(ctx context.Context) (bool, string) {
		list, err := t.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d left, %v", len(list.Items), err)
	})
}
