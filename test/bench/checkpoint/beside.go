//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// training.py follows worker.py's definitions, in place of its last line, and is followed by what uses it.
//
// trainingScript replaces the last line of worker.py and precedes the script that uses it.
//
//go:embed training.py
var trainingScript string

//go:embed steps.py
var stepsScript string

const (
	stepping = "steps"
	// blockTokens make a step of forward and backward about as long as the optimizer's.
	blockTokens = 16
	// besideSteps is the number of steps of a block; besidePairs is the number of blocks with the agent's work, and of blocks without.
	besideSteps = 8
	besidePairs = 5
	// checksumEvery is the interval of saves whose checksums are computed.
	checksumEvery = 2 * time.Second
	// besideGeneration is a generation that no process belongs to.
	besideGeneration = 1 << 20
)

func scriptOf(system string) string {
	after := map[string]string{stepping: stepsScript, cuda: cudaScript}[system]
	if after == "" {
		return workerScript
	}
	return strings.TrimSuffix(strings.TrimSpace(workerScript), "main()") + trainingScript + after
}

// agentBeside measures what the agent's work costs steps: repeated copies to storage while training uses all cores, and a checksum of the
// state every checksumEvery while one core is free. Blocks with and without it alternate.
func (t *turn) agentBeside(ctx context.Context) error {
	if t.ranks != 1 || !slices.Contains(t.chosen, holdfast) {
		return nil
	}
	t.holder.begin(0)
	env := append(t.environment(), t.holder.environment(0, 0)...)
	w, err := startWorker(ctx, string(t.python), env, stepping, strconv.FormatInt(t.bytes, 10), t.memory, t.disk, "0", "1")
	if err != nil {
		return fmt.Errorf("starting %s with --python: %w", stepping, err)
	}
	g := &group{system: stepping, workers: []*worker{w}}
	defer g.stop()
	if _, err := g.answers("its start"); err != nil {
		return err
	}
	if _, err := g.one(fmt.Sprintf("save %d", blockTokens)); err != nil {
		return err
	}
	step := t.holder.sealed(0)
	for _, c := range []struct {
		metric, alone string
		threads       int
		work          func(context.Context, int64) error
	}{
		{"step_persisting", "step_busy", runtime.NumCPU(), t.persistOn},
		{"step_checksums", "step_free", max(1, runtime.NumCPU()-1), t.checksumOn},
	} {
		pairs := besidePairs
		if t.Quick {
			pairs = 1
		}
		for n := range pairs {
			fmt.Fprintf(t.progress, "%s: %s, pair %d of %d\n", t.name, c.metric, n+1, pairs)
			for i := range 2 {
				if (n+i)%2 == 0 {
					if err := t.steps(g, c.alone, c.threads); err != nil {
						return err
					}
					continue
				}
				if err := t.stepsBeside(ctx, g, c.metric, c.threads, func(ctx context.Context) error { return c.work(ctx, step) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *turn) steps(g *group, metric string, threads int) error {
	a, err := g.one(fmt.Sprintf("steps %d %d %d", threads, besideSteps, blockTokens))
	if err == nil {
		t.set.Add(t.name, holdfast, metric, "s", a.Step)
	}
	return err
}

// stepsBeside measures steps while work runs; its context ends the work.
func (t *turn) stepsBeside(ctx context.Context, g *group, metric string, threads int, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	err := t.steps(g, metric, threads)
	cancel()
	if failed := <-done; !errors.Is(failed, context.Canceled) {
		err = errors.Join(err, failed)
	}
	return err
}

// persistOn copies a step of the one rank to storage repeatedly, each time under another step number.
func (t *turn) persistOn(ctx context.Context, step int64) error {
	pinned, ok, _ := t.holder.set.Pin(0, step)
	if !ok {
		return fmt.Errorf("no slot holds step %d", step)
	}
	defer pinned.Release()
	for n := int64(0); ; n++ {
		f := format.RankFile{WorldSize: 1, Step: step + n, Generation: besideGeneration, Length: pinned.Seal.Length, Checksum: pinned.Seal.CRC}
		if err := t.holder.store.Put(ctx, f, pinned.Data()); err != nil {
			return err
		}
		m := format.Manifest{Step: f.Step, Generation: f.Generation, Ranks: []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}}}
		if err := t.holder.store.PutManifest(m); err != nil {
			return err
		}
		if err := t.holder.store.Prune(protocol.Mark{Step: step + n + 1, Generation: besideGeneration}); err != nil {
			return err
		}
	}
}

// checksumOn computes the checksum of a step of the one rank at the interval of saves, as a seal does.
func (t *turn) checksumOn(ctx context.Context, step int64) error {
	pinned, ok, _ := t.holder.set.Pin(0, step)
	if !ok {
		return fmt.Errorf("no slot holds step %d", step)
	}
	defer pinned.Release()
	pace := time.NewTicker(checksumEvery)
	defer pace.Stop()
	for {
		if sum, err := pinned.Checksum(); err != nil {
			return err
		} else if sum != pinned.Seal.CRC {
			return errors.New("the state differs from the sealed one")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pace.C:
		}
	}
}
