//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// training.py follows worker.py's definitions, in place of its last line, and is followed by what uses it.
//
//go:embed training.py
var trainingScript string

//go:embed overlapped.py
var overlappedScript string

const (
	overlapped = "overlapped"
	// blockSaves are the saves of a block: one of them is a proof.
	blockSaves = 16
	// blockTokens make a step of forward and backward about as long as the optimizer's.
	blockTokens = 16
	// busyBlocks are enough for what is reported only.
	busyBlocks = 2
)

func scriptOf(system string) string {
	after := map[string]string{overlapped: overlappedScript, cuda: cudaScript}[system]
	if after == "" {
		return workerScript
	}
	return strings.TrimSuffix(strings.TrimSpace(workerScript), "main()") + trainingScript + after
}

// overlaps measures what saves cost real training while the rest of each is copied beside it: with one core free, and with none. Only a
// rank alone: several take turns on the free core, and the figure would be of the machine.
func (t *turn) overlaps(ctx context.Context) error {
	if t.ranks != 1 || !slices.Contains(t.chosen, holdfast) {
		return nil
	}
	t.holder.begin(0)
	env := append(t.environment(), "HOLDFAST_OVERLAP=1")
	w, err := startWorker(ctx, string(t.python), append(env, t.holder.environment(0, 0)...), overlapped, strconv.FormatInt(t.bytes, 10), t.memory, t.disk, "0", "1")
	if err != nil {
		return fmt.Errorf("starting %s with --python: %w", overlapped, err)
	}
	g := &group{system: overlapped, workers: []*worker{w}}
	defer g.stop()
	if _, err := g.answers("its start"); err != nil {
		return err
	}
	saves := t.many.Or(t.Quick, 5, 200)
	steps := min(saves, blockSaves)
	cores := runtime.NumCPU()
	if _, err := t.block(g, max(1, cores-1), steps); err != nil { // saves begin to overlap in it
		return err
	}
	for _, c := range []struct {
		metric          string
		threads, blocks int
	}{{"overlapped_stall", max(1, cores-1), (saves + steps - 1) / steps}, {"overlapped_stall_busy", cores, busyBlocks}} {
		var each, stalls []float64
		for n := range c.blocks {
			fmt.Fprintf(t.progress, "%s: %s, block %d of %d\n", t.name, c.metric, n+1, c.blocks)
			a, err := t.block(g, c.threads, steps)
			if err != nil {
				return err
			}
			t.set.Add(t.name, holdfast, c.metric, "s", a.Stall)
			t.set.Add(t.name, memcpy, c.metric, "s", a.Memcpy)
			t.set.Add(t.name, aside, c.metric, "s", a.Beside)
			t.set.Add(t.name, holdfast, c.metric+"_step", "s", a.Step)
			each, stalls = append(each, a.Each...), append(stalls, a.Stall)
		}
		if mean, bound, ok := upper(stalls); ok {
			t.set.Add(t.name, holdfast, c.metric+"_mean", "s", mean)
			t.set.Add(t.name, holdfast, c.metric+"_mean_upper", "s", bound)
		}
		slices.Sort(each)
		t.set.Add(t.name, holdfast, c.metric+"_p95", "s", each[(len(each)*95+99)/100-1])
	}
	return t.agentBeside(ctx, g)
}

// block is steps without saves and as many with one before each. One that did not overlap, or dropped a save, is no figure.
func (t *turn) block(g *group, threads, steps int) (answer, error) {
	a, err := g.one(fmt.Sprintf("block %d %d %d", threads, steps, blockTokens))
	if err != nil {
		return answer{}, err
	}
	switch {
	case a.Dropped > 0:
		return a, fmt.Errorf("%s: %d saves were dropped though nothing had changed", overlapped, a.Dropped)
	case steps == blockSaves && a.Overlapped < steps/2:
		return a, fmt.Errorf("%s: %d saves of %d overlapped", overlapped, a.Overlapped, steps)
	}
	return a, nil
}

// upper is the mean, and the upper end of the interval that holds it with 95 % certainty, by the normal distribution.
func upper(values []float64) (mean, bound float64, ok bool) {
	if len(values) < 2 {
		return 0, 0, false
	}
	for _, v := range values {
		mean += v / float64(len(values))
	}
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return mean, mean + 1.96*math.Sqrt(squares/float64(len(values)-1)/float64(len(values))), true
}
