package main

import (
	"context"
	"fmt"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/lives"
	standin "holdfast.dev/holdfast/test/devcluster/nvml"
)

// Metrics of the cases on real nodes.
const (
	podStart        = "pod_start_s"
	scriptStart     = "script_start_s"
	podAndScript    = "pod_and_script_s"
	faultToStep     = "fault_to_step_s"
	faultToTaint    = "fault_to_taint_s"
	faultToOutage   = "fault_to_outage_s"
	faultToReleased = "fault_to_released_s"
	stepVsBare      = "fault_to_step_vs_bare"
	stepsRecomputed = "steps_recomputed"
	trainingAgain   = "training_again_s"
)

// gpuLost makes a GPU fall off the bus under one of the pods, on another node each time: a repeated cause has a longer hold-off.
func gpuLost(ctx context.Context, b *bench) error {
	return b.faults(ctx, "gpu-lost", figure.Repeats(b.repeat, b.Quick), func(ctx context.Context, r *real, t *trainer) error {
		node, err := t.pick(ctx, r.failed)
		if err != nil {
			return err
		}
		r.failed = append(r.failed, node)
		f, err := t.suffer(ctx, node, func() error { return r.Node(node).Fail(standin.Fault{GPU: 0, Xid: 79, Lost: true}) })
		if err != nil {
			return fmt.Errorf("a GPU lost on %s: %w", node, err)
		}
		b.note("gpu-lost", f)
		return r.Node(node).Heal()
	})
}

// drain drains a healthy node as its owner would.
func drain(ctx context.Context, b *bench) error {
	return b.faults(ctx, "drain", figure.Repeats(b.repeat, b.Quick), func(ctx context.Context, r *real, t *trainer) error {
		leaders, err := r.leaders(ctx)
		if err != nil {
			return err
		}
		node, err := t.pick(ctx, leaders)
		if err != nil {
			return err
		}
		f, err := t.drained(ctx, node)
		if err != nil {
			return err
		}
		b.note("drain", f)
		return nil
	})
}

// deadNode kills everything on a node at once, without a last message.
func deadNode(ctx context.Context, b *bench) error {
	return b.faults(ctx, "dead-node", figure.Repeats(b.repeat, b.Quick), func(ctx context.Context, r *real, t *trainer) error {
		leaders, err := r.leaders(ctx)
		if err != nil {
			return err
		}
		node, err := t.pick(ctx, leaders)
		if err != nil {
			return err
		}
		// Late in an interval, when most would be lost.
		if err := t.stored(ctx, storeSeconds*time.Second*8/10); err != nil {
			return err
		}
		f, err := t.suffer(ctx, node, func() error { return r.Node(node).Kill() })
		if err != nil {
			return fmt.Errorf("node %s killed: %w", node, err)
		}
		b.note("dead-node", f)
		b.Add("dead-node", systemHoldfast, trainingAgain, "s", float64(f.resumption.Recomputed)*f.stepMs/1000)
		return r.Node(node).Revive()
	})
}

// faults causes the same fault several times, each when all nodes are healthy again.
func (b *bench) faults(ctx context.Context, kase string, times int, play func(context.Context, *real, *trainer) error) error {
	r, err := b.onNodes(ctx)
	if err != nil {
		return err
	}
	t, err := r.holdfast(ctx)
	if err != nil {
		return err
	}
	for i := range times {
		if err := r.allHealthy(ctx); err != nil {
			return err
		}
		if err := play(ctx, r, t); err != nil {
			return err
		}
		samples := b.Samples(kase, systemHoldfast, faultToStep)
		r.Say("  %s %d of %d: %.2f s to the first new step", kase, i+1, times, samples[len(samples)-1])
	}
	return r.allHealthy(ctx)
}

// suffered is the cost of one fault.
type suffered struct {
	at                        time.Time
	tainted, outage, released time.Time // zero: did not happen
	resumption                lives.Resumption
	recovery                  *v1alpha1.Recovery // nil for a job without a Gang
	stepMs                    float64            // time of a step before the fault
}

// suffer causes a fault on a node and waits until training resumes and the Gang has the record of that recovery.
func (t *trainer) suffer(ctx context.Context, node string, cause func() error) (suffered, error) {
	stepMs, err := t.steady(ctx)
	if err != nil {
		return suffered{}, err
	}
	before, err := t.generation(ctx)
	if err != nil {
		return suffered{}, err
	}
	f := suffered{at: time.Now(), stepMs: stepMs}
	if err := cause(); err != nil {
		return f, err
	}
	if err := t.r.Until(ctx, "first new step on all ranks", t.limit, func(context.Context) (bool, string) {
		var ok bool
		f.resumption, ok = t.rec.Resumed(ranks, f.at)
		return ok, t.rec.Progress(ranks, f.at)
	}); err != nil {
		return f, t.explain(ctx, node, before, f.at, err)
	}
	if t.job != jobHoldfast {
		return f, nil
	}
	if f.recovery, err = t.recovery(ctx, before); err != nil {
		return f, err
	}
	for key, into := range map[string]*time.Time{v1alpha1.TaintUnhealthy: &f.tainted, v1alpha1.TaintOutage: &f.outage} {
		if at, ok := t.r.marks.tainted(node, key); ok && at.After(f.at) {
			*into = at
		}
	}
	for _, p := range f.recovery.Replaced {
		if p.ReleasedAt != nil {
			f.released = lives.Later(f.released, p.ReleasedAt.Time)
		}
	}
	return f, nil
}

// explain adds what was observed of a fault after which training did not resume.
func (t *trainer) explain(ctx context.Context, node string, before int64, fault time.Time, err error) error {
	_, unhealthy := t.r.marks.tainted(node, v1alpha1.TaintUnhealthy)
	_, outage := t.r.marks.tainted(node, v1alpha1.TaintOutage)
	now, readErr := t.generation(ctx)
	if !unhealthy && !outage && now == before && readErr == nil {
		return fmt.Errorf("the fault was not seen at all: node %s has no taint, the Gang is in generation %d as before, training never stopped: %w", node, now, err)
	}
	return fmt.Errorf("seen after %.0f s: taint %s %t, taint %s %t, generation %d of %d before: %w; last lines: %q", time.Since(fault).Seconds(),
		v1alpha1.TaintUnhealthy, unhealthy, v1alpha1.TaintOutage, outage, now, before, err, t.rec.Tail(8))
}

// drained drains a node by kubectl; the node accepts pods again afterwards.
func (t *trainer) drained(ctx context.Context, node string) (suffered, error) {
	ended := make(chan error, 1)
	f, err := t.suffer(ctx, node, func() error {
		go func() {
			_, err := t.r.RunKubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
			ended <- err
		}()
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("node %s drained: %w", node, err)
	}
	if err := <-ended; err != nil {
		return f, err
	}
	_, err = t.r.RunKubectl(ctx, "uncordon", node)
	return f, err
}

// note records the figures of a fault.
func (b *bench) note(kase string, f suffered) {
	add := func(metric, unit string, v float64) { b.Add(kase, systemHoldfast, metric, unit, v) }
	since := func(metric string, at time.Time) {
		if !at.IsZero() {
			add(metric, "s", at.Sub(f.at).Seconds())
		}
	}
	since(faultToTaint, f.tainted)
	since(faultToOutage, f.outage)
	since(faultToReleased, f.released)
	since(faultToStep, f.resumption.Stepped)
	if one, ok := b.Median("bare", systemTorchrun, podAndScript); ok && kase != "drain" { // not a drain, which delays the replacement
		add(stepVsBare, figure.Times, f.resumption.Stepped.Sub(f.at).Seconds()/one)
	}
	add(stepsRecomputed, "steps", float64(f.resumption.Recomputed))
	since("phase_detect_s", f.recovery.DetectedAt.Time)
	for _, p := range phases(f.recovery) {
		add("phase_"+p.name+"_s", "s", p.took.Seconds())
	}
}

type phase struct {
	name string
	took time.Duration
}

// phases returns the phases of the Gang's record and splits start. If a dead pod was given up after the last process of the others had
// gone, the record has that wait at the beginning of start.
func phases(r *v1alpha1.Recovery) (out []phase) {
	var givenUp time.Time
	for i := range r.Replaced {
		if r.Replaced[i].Dead {
			givenUp = lives.Later(givenUp, r.Replaced[i].At.Time)
		}
	}
	gone, wait := r.DetectedAt.Time, time.Duration(0)
	for _, p := range []struct {
		name string
		ms   *int64
	}{{"decide", r.DecideMs}, {"drain", r.DrainMs}, {"stop", r.StopMs}, {"replace", r.ReplaceMs}, {"fetch", r.FetchMs},
		{"start", r.StartMs}, {"restore", r.RestoreMs}, {"first_step", r.FirstStepMs}} {
		if p.ms == nil {
			continue
		}
		took := time.Duration(*p.ms) * time.Millisecond
		switch p.name {
		case "decide", "drain", "stop":
			if p.name != "decide" || r.DrainMs == nil { // decide includes the drain
				gone = gone.Add(took)
			}
		case "start":
			took -= min(wait, took)
		}
		out = append(out, phase{p.name, took})
		if p.name == "stop" && givenUp.After(gone) {
			wait = givenUp.Sub(gone)
			out = append(out, phase{"give_up", wait})
		}
	}
	return out
}

// leastReferences is the least number of measurements of a reference: one cold start varies too much.
const leastReferences = 3

func referenceTimes(asked figure.Count, quick bool) int {
	if quick && asked == 0 {
		return 1
	}
	return max(leastReferences, figure.Repeats(asked, quick))
}

// bare measures without Holdfast, in the same run: a pod, the cold start of the script, and a drained node.
func bare(ctx context.Context, b *bench) error {
	r, err := b.onNodes(ctx)
	if err != nil {
		return err
	}
	times := referenceTimes(b.repeat, b.Quick)
	for i := range times {
		took, err := r.podStart(ctx, fmt.Sprintf("bare-%d", i))
		if err != nil {
			return err
		}
		b.Add("bare", systemTorchrun, podStart, "s", took.Seconds())
	}
	var t *trainer
	for i := range times {
		if i > 0 {
			if err := r.remove(ctx, t); err != nil {
				return err
			}
		}
		if t, err = r.train(ctx, jobTorchrun); err != nil {
			return err
		}
		took, err := t.coldStart(ctx)
		if err != nil {
			return err
		}
		b.Add("bare", systemTorchrun, scriptStart, "s", took.Seconds())
		b.Add("bare", systemTorchrun, podAndScript, "s", b.Samples("bare", systemTorchrun, podStart)[i]+took.Seconds())
		if b.cases.Include("drain") {
			if err := b.plainDrained(ctx, t); err != nil {
				return err
			}
		}
	}
	return r.remove(ctx, t)
}

// coldStart is the time from the last pod's first line to the last rank's first step, in a new job.
func (t *trainer) coldStart(ctx context.Context) (time.Duration, error) {
	var began lives.Resumption
	if err := t.r.Until(ctx, "first step of plain torchrun", stepLimit, func(context.Context) (bool, string) {
		var ok bool
		began, ok = t.rec.Resumed(ranks, time.Time{})
		return ok, t.rec.Progress(ranks, time.Time{})
	}); err != nil {
		return 0, fmt.Errorf("%w; last lines: %q", err, t.rec.Tail(8))
	}
	return began.Stepped.Sub(t.rec.LastBorn()), nil
}

// plainDrained drains the node of the pod that does not serve torchrun's rendezvous. If training does not resume, that is a figure, too.
func (b *bench) plainDrained(ctx context.Context, t *trainer) error {
	members, err := t.members(ctx)
	if err != nil {
		return err
	}
	node := members[1].Spec.NodeName
	t.limit = plainLimit
	f, err := t.drained(ctx, node)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		t.r.Say("  plain torchrun did not go on: %v", err)
		b.Add("drain", systemTorchrun, "recovered", "bool", 0)
		b.Add("drain", systemTorchrun, "waited_s", "s", plainLimit.Seconds())
		_, err := t.r.RunKubectl(ctx, "uncordon", node)
		return err
	}
	b.Add("drain", systemTorchrun, faultToStep, "s", f.resumption.Stepped.Sub(f.at).Seconds())
	b.Add("drain", systemTorchrun, stepsRecomputed, "steps", float64(f.resumption.Recomputed))
	t.r.Say("  plain torchrun: %.2f s to the first new step", f.resumption.Stepped.Sub(f.at).Seconds())
	return nil
}
