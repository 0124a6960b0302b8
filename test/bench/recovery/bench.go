package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

// plan is what to measure.
type plan struct {
	shapes  []shape
	systems []string
	loads   []load
	kills   int
}

var (
	onePod  = shape{"1x4", 1, 4, trainFile}
	twoPods = shape{"2x2", 2, 2, trainFile}
	plain   = shape{"plain", 1, 4, plainFile}

	full = plan{
		shapes:  []shape{onePod, twoPods, plain},
		systems: []string{systemLimit, systemTorchrun, systemCold, systemHoldfast, systemAsComes},
		// Busy cores first: then a job's first standbys are measured on busy cores.
		loads: []load{busy, paused}, kills: 5,
	}
	quick = plan{
		shapes:  []shape{onePod},
		systems: []string{systemLimit, systemTorchrun, systemHoldfast},
		loads:   []load{paused}, kills: 1,
	}
)

// bench is one run on one cluster.
type bench struct {
	w       *harness.World
	plan    plan
	results *results
}

// turn is one job of a system, from its creation to its end, and the number of its kills per load, numbered after those of earlier turns.
type turn struct {
	system       string
	kills, after int
}

// turns are the jobs of a shape, one after the other: nothing else runs beside. Systems that are killed come twice, the second time in the
// opposite order: a machine's speed drifts within minutes by more than some systems differ, and this order favours none.
func (p plan) turns(s shape) (out []turn) {
	var killed []string
	for _, name := range p.systems {
		if name != systemLimit && name != systemAsComes && (!s.plain() || slices.Contains(plainSystems, name)) {
			killed = append(killed, name)
		}
	}
	if slices.Contains(p.systems, systemLimit) && !s.plain() {
		out = append(out, turn{system: systemLimit})
	}
	first := (p.kills + 1) / 2
	for _, name := range killed {
		out = append(out, turn{system: name, kills: first})
	}
	for _, name := range slices.Backward(killed) {
		if p.kills > first {
			out = append(out, turn{system: name, kills: p.kills - first, after: first})
		}
	}
	if slices.Contains(p.systems, systemAsComes) && !s.plain() && s == p.shapes[0] { // measured once
		out = append(out, turn{system: systemAsComes})
	}
	return out
}

// plainSystems are the systems under which a plain script is measured.
var plainSystems = []string{systemHoldfast, systemTorchrun}

// run measures everything in the plan. A failed system does not stop the others; run returns all failures together. A failed or interrupted
// case has no figures of that system, and its second turn in that shape is skipped.
func (b *bench) run(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	var errs []error
	for _, sh := range b.plan.shapes {
		broken := map[string]bool{}
		for _, turn := range b.plan.turns(sh) {
			if broken[turn.system] {
				continue
			}
			if err := b.measure(ctx, turn, sh); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				b.w.Say("  BROKEN: %v", err)
				broken[turn.system] = true
				errs = append(errs, fmt.Errorf("%s, %s: %w", sh.name, turn.system, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (b *bench) prepare(ctx context.Context) error {
	for _, o := range lives.Room(namespace, map[string]string{trainFile: trainScript, plainFile: plainScript, "limit.py": limitScript}) {
		if err := b.w.Client().Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// measure runs one turn of a system in one shape, from its job's creation to its last pod's end.
func (b *bench) measure(ctx context.Context, turn turn, sh shape) (err error) {
	b.w.Say("%s, %s", sh.name, turn.system)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{bench: b, system: systems[turn.system], shape: sh, rec: lives.New(), before: turn.after}
	defer func() { err = errors.Join(err, b.remove(context.WithoutCancel(ctx), t.system.jobName(sh))) }()
	if err := t.start(ctx); err != nil {
		return err
	}
	switch t.system.name {
	case systemLimit:
		return t.limit(ctx)
	case systemAsComes:
		err := t.never(ctx)
		if err != nil {
			b.results.Forget(t.caseName(paused), systemAsComes)
		}
		return err
	}
	for _, l := range sh.loads(b.plan.loads) {
		if err := t.underKills(ctx, l, turn.kills); err != nil {
			b.w.Say("  no figures of %s in %s", turn.system, t.caseName(l))
			b.results.Forget(t.caseName(l), turn.system)
			return err
		}
	}
	return nil
}

// loads are a plan's loads; a plain script has only the first, under which the first standbys warm up.
func (s shape) loads(of []load) []load {
	if s.plain() {
		return of[:1]
	}
	return of
}

// start creates a system's job and returns once it trains.
func (t *trial) start(ctx context.Context) error {
	name := t.system.jobName(t.shape)
	for _, o := range []client.Object{lives.Service(namespace, name), jobFor(t.system, t.shape, t.plan.kills)} {
		if err := t.w.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating job %s: %w", name, err)
		}
	}
	if err := t.follow(ctx, name, t.shape, t.rec); err != nil {
		return err
	}
	if t.system.name == systemLimit {
		return nil
	}
	if err := t.w.Until(ctx, "first steps", 2*time.Minute, func(context.Context) (bool, string) {
		return len(t.rec.RatesBetween(time.Time{}, time.Now())) > 0, t.rec.Progress(t.shape.ranks(), time.Time{})
	}); err != nil {
		return fmt.Errorf("%w; the job's last lines: %q", err, t.rec.Tail(6))
	}
	t.rested = time.Now()
	return nil
}

// The kinds of lines that limit.py prints: forked processes, new ones all at once, and a new one alone.
const (
	kindLimit      = "limit"
	kindLimitCold  = "limit_cold"
	kindLimitAlone = "limit_alone"
)

// follow waits for the job's pods and collects their output.
func (b *bench) follow(ctx context.Context, job string, sh shape, into *lives.Record) error {
	if err := b.w.Until(ctx, "pods of "+job+" running", 2*time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := b.w.Pods(ctx, namespace, job)
		if err != nil {
			return false, err.Error()
		}
		running := 0
		var seen []string
		for _, p := range pods {
			seen = append(seen, describe(p))
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == sh.pods, strings.Join(seen, "; ")
	}); err != nil {
		return err
	}
	go into.Follow(ctx, b.w, namespace, job)
	return nil
}

// describe says in a few words why a pod waits.
func describe(p corev1.Pod) string {
	out := p.Name + " " + string(p.Status.Phase)
	for _, c := range p.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			out += ", " + c.Message
		}
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil {
			out += fmt.Sprintf(", %s: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	return out[:min(len(out), 220)]
}

// remove deletes a job with its Service.
func (b *bench) remove(ctx context.Context, job string) error {
	err := b.w.Client().Delete(ctx, lives.Service(namespace, job))
	return errors.Join(client.IgnoreNotFound(err), lives.Remove(ctx, b.w, namespace, job, time.Minute))
}

// limit records the times of processes without a launcher, in every case of the shape: no pause precedes a first step.
func (t *trial) limit(ctx context.Context) error {
	if err := t.w.Until(ctx, "processes of no launcher have stepped", 3*time.Minute, func(context.Context) (bool, string) {
		forked, cold, alone := t.rec.Seconds(kindLimit), t.rec.Seconds(kindLimitCold), t.rec.Seconds(kindLimitAlone)
		return min(len(forked), len(cold), len(alone)) >= t.plan.kills, fmt.Sprintf("%d forked, %d cold, %d alone; last line: %q", len(forked), len(cold), len(alone), t.rec.Tail(1))
	}); err != nil {
		return err
	}
	for _, l := range t.plan.loads {
		t.results.Add(t.caseName(l), systemLimit, killToStep, "s", t.rec.Seconds(kindLimit)...)
		t.results.Add(t.caseName(l), systemLimitCold, killToStep, "s", t.rec.Seconds(kindLimitCold)...)
		t.results.Add(t.caseName(l), systemLimitCold, oneProcess, "s", t.rec.Seconds(kindLimitAlone)...)
	}
	t.w.Say("  %s: a group joined and one step taken: by forked processes in %.2f s, by new ones in %.2f s, by one alone in %.2f s", t.shape.name,
		figure.Median(t.rec.Seconds(kindLimit)), figure.Median(t.rec.Seconds(kindLimitCold)), figure.Median(t.rec.Seconds(kindLimitAlone)))
	return nil
}

// never shows that a system does not recover within several times the others' time.
func (t *trial) never(ctx context.Context) error {
	kase := t.caseName(paused)
	if err := t.calm(ctx, kase); err != nil {
		return err
	}
	killed, err := t.kill(ctx, victims[0])
	if err != nil {
		return err
	}
	value := 0.0
	if got, err := t.recovery(ctx, killed, neverWait); err == nil {
		value = 1
		t.note(kase, got)
	} else if ctx.Err() != nil {
		return ctx.Err()
	}
	t.results.Add(kase, t.system.name, recoveredAny, "bool", value)
	t.results.Add(kase, t.system.name, "waited_s", "s", time.Since(killed).Seconds())
	t.w.Say("  %s, %s: recovered within %s: %t", kase, t.system.name, neverWait, value == 1)
	return nil
}
