//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"
)

//go:embed cuda.py
var cudaScript string

const (
	cuda = "cuda"
	// unregistered copies through the driver's buffers, as a client does without HOLDFAST_REGISTER.
	unregistered = "unregistered"
	// savesEach is the number of saves of each way after the first.
	savesEach = 2
	// deviceSteps are the steps of a block, with and without saves.
	deviceSteps = 6
)

// deviceShapes are the cases whose state lies on a device. Such a case runs only if it is named: other machines have no device.
var deviceShapes = []shape{
	{name: "cuda-1GiB", ranks: 1, bytes: gib, memory: 8 * gib, device: true},
	{name: "cuda-4GiB", ranks: 1, bytes: 4 * gib, memory: 28 * gib, device: true},
	{name: "cuda-20GiB", ranks: 1, bytes: 20 * gib, memory: 70 * gib, device: true, slots: 2},
}

// deviceGoals are the goals of deviceShapes.
var deviceGoals = []goal{
	{metric: "blocking_stall", system: unregistered, of: "blocking_stall", name: "blocking_stall_vs_unregistered", most: 1.0 / 3},
	{metric: "blocking_stall", system: memcpy, of: "blocking_stall", name: "blocking_stall_vs_memcpy", most: 1.25},
	{metric: "overlapped_stall", system: memcpy, of: "blocking_stall", name: "overlapped_stall_vs_copy", most: 0.1},
}

// onDevice measures saves of a state on a device: without registered memory, with it, beside training, and a restore.
func (t *turn) onDevice(ctx context.Context) error {
	if t.holder == nil {
		return fmt.Errorf("--systems: a case on a device compares others with %s: name it too", holdfast)
	}
	if err := t.deviceSaves(ctx, unregistered, nil); err != nil {
		return err
	}
	t.holder.begin(0)
	return t.deviceSaves(ctx, holdfast, func(g *group) error {
		if err := t.registerAndOverlap(g); err != nil {
			return err
		}
		if err := t.rivals(g); err != nil {
			return err
		}
		return t.deviceRestore(ctx, g)
	})
}

func (t *turn) device(ctx context.Context, restore int64, env ...string) (*group, error) {
	env = append(t.environment(), env...)
	args := []string{cuda, strconv.FormatInt(t.bytes, 10), t.memory, t.disk, "0", "1"}
	if restore > 0 {
		args = append(args, "restore", strconv.FormatInt(restore, 10))
	}
	w, err := startWorker(ctx, string(t.python), append(env, t.holder.environment(0, restore)...), args...)
	if err != nil {
		return nil, fmt.Errorf("starting %s with --python: %w", cuda, err)
	}
	g := &group{system: cuda, workers: []*worker{w}}
	_, err = g.answers("its start")
	return g, err
}

// deviceSaves does a first save and steady ones of one way, then calls then.
func (t *turn) deviceSaves(ctx context.Context, system string, then func(*group) error) error {
	env := []string{"HOLDFAST_REGISTER=0", "HOLDFAST_OVERLAP=0"} // overrides the caller's environment
	if then != nil {
		env = []string{"HOLDFAST_REGISTER=1", "HOLDFAST_OVERLAP=1"}
	}
	g, err := t.device(ctx, 0, env...)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return err
	}
	if then != nil {
		a, err := g.one("register")
		if err != nil {
			return err
		}
		t.add(system, "register", a.Restore)
		t.add(system, "longest_step_beside_register", a.Load)
		t.add(system, "step_micro", a.Step)
	}
	for n := range 1 + savesEach {
		fmt.Fprintf(t.progress, "%s: %s, save %d of %d\n", t.name, system, n+1, 1+savesEach)
		a, err := g.one("save")
		switch {
		case err != nil:
			return err
		case n == 0 && then == nil:
			t.add(system, "first_stall", a.Stall)
		case n > 0:
			t.add(system, "blocking_stall", a.Stall)
			t.add(system, "sealed", a.Durable)
			t.set.Add(t.name, system, "verified", "GB/s", float64(t.bytes)/1e9/(a.Durable-a.Stall))
		}
	}
	if then != nil {
		return then(g)
	}
	t.end(g, system)
	return nil
}

// end kills the process and waits until its memory is free.
func (t *turn) end(g *group, system string) {
	began := time.Now()
	g.kill()
	t.add(system, "killed_to_gone", time.Since(began).Seconds())
}

func (t *turn) registerAndOverlap(g *group) error {
	fmt.Fprintf(t.progress, "%s: saves beside training\n", t.name)
	a, err := g.one(fmt.Sprintf("blocks %d", deviceSteps))
	if err != nil {
		return err
	}
	if a.Dropped > 0 || a.Overlapped < deviceSteps/2 {
		return fmt.Errorf("%s: %d saves of %d overlapped, %d were dropped", cuda, a.Overlapped, deviceSteps, a.Dropped)
	}
	t.add(memcpy, "blocking_stall", a.Memcpy)
	t.add(holdfast, "overlapped_stall", a.Stall)
	t.add(holdfast, "overlapped_step", a.Step)
	slices.Sort(a.Each)
	t.add(holdfast, "overlapped_inside_max", a.Each[len(a.Each)-1])
	t.add(holdfast, "overlapped_inside_median", a.Each[len(a.Each)/2])
	return nil
}

func (t *turn) rivals(g *group) error {
	for _, r := range []struct{ system, verb string }{{torchSave, "torchsave"}, {dcpThread, "dcp"}} {
		if !slices.Contains(t.chosen, r.system) || r.system == dcpThread && t.bytes > 8*gib { // its pinned memory is as large again
			continue
		}
		for n := range 1 + steady {
			fmt.Fprintf(t.progress, "%s: %s, save %d of %d\n", t.name, r.system, n+1, 1+steady)
			a, err := g.one(r.verb)
			if err != nil {
				return err
			}
			if a.Failed != "" {
				fmt.Fprintf(t.progress, "%s: %s: no figure: %s\n", t.name, r.system, a.Failed)
				break
			}
			if n == 0 {
				t.add(r.system, "first_stall", a.Stall)
				if t.bytes > 8*gib {
					break
				}
				continue
			}
			t.add(r.system, "blocking_stall", a.Stall)
		}
	}
	return nil
}

// deviceRestore kills the process and lets another one restore the state to the device.
func (t *turn) deviceRestore(ctx context.Context, g *group) error {
	fmt.Fprintf(t.progress, "%s: restore\n", t.name)
	if _, err := g.one("save"); err != nil {
		return err
	}
	was, err := g.one("sums")
	if err != nil {
		return err
	}
	step := t.holder.sealed(0)
	t.end(g, holdfast)
	t.holder.begin(step)
	next, err := t.device(ctx, step)
	if next != nil {
		defer next.stop()
	}
	if err != nil {
		return err
	}
	is, err := next.one("restored")
	if err != nil {
		return err
	}
	if !slices.Equal(was.Each, is.Each) {
		return fmt.Errorf("%s: restored a state whose sum is %v, and it was %v", cuda, is.Each, was.Each)
	}
	t.add(holdfast, "restore", is.Restore)
	return nil
}

func isOnDevice(kase string) bool {
	return slices.ContainsFunc(deviceShapes, func(s shape) bool { return s.name == kase })
}

// goalsOf returns the goals of a case.
func goalsOf(kase string) []goal {
	if isOnDevice(kase) {
		return deviceGoals
	}
	return goals
}
