// Command bench-watch measures what Holdfast costs the ranks of a script that makes steps: the site hook that counts them, and the agent
// beside them. The same processes take a few steps with and without the hook in turns, and so does the same script under torchrun. The
// output shows each goal that was missed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/bench/figure"
)

// benchName is the benchmark's name in every line.
const benchName = "watch"

// timeLimit bounds the whole run with the default flags.
const timeLimit = 30 * time.Minute

// The defaults.
const (
	usualRounds, quickRounds = 5, 1
	usualGroups, quickGroups = 60, 3
)

type options struct {
	figure.Common
	repeat, groups figure.Count
}

func main() { figure.Main(command(os.Stdout, os.Stderr)) }

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench-watch",
		Short: "Measure what the site hook and the agent cost a rank's steps, with and without the hook in turns, and next to torchrun",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "one round of three groups, and no looks")
	f.Var(&o.repeat, "rounds", fmt.Sprintf("how often new processes are measured (default %d, %d with --quick)", usualRounds, quickRounds))
	f.Var(&o.groups, "groups", fmt.Sprintf("groups of blocks in a round (default %d, %d with --quick)", usualGroups, quickGroups))
	return cmd
}

// bench is one run.
type bench struct {
	options
	*results
	folder string
	say    func(format string, args ...any)
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	began := time.Now()
	if err := o.Begin(benchName); err != nil {
		return err
	}
	b := &bench{options: o, results: newResults(), say: figure.Say(progress, began)}
	if b.folder, err = os.MkdirTemp("", "bench-watch-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	broken := b.measure(ctx)
	result := figure.Result{Common: &o.Common, Rows: b.figures(), Goals: goals(), Began: began, Limit: timeLimit, Broken: broken}
	return result.Conclude(out, progress)
}

// measure measures all rounds. A round that fails ends the run, and has no figures.
func (b *bench) measure(ctx context.Context) error {
	rounds := b.repeat.Or(b.Quick, quickRounds, usualRounds)
	for i := range rounds {
		if err := b.round(ctx, i+1, i+1 == rounds && !b.Quick); err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
	}
	return nil
}

// round starts the script under both launchers, measures groups of blocks, and with still what a wait costs.
func (b *bench) round(ctx context.Context, number int, still bool) (err error) {
	root, err := filepath.Abs(b.Root())
	if err != nil {
		return err
	}
	ours, err := start(b.folder, number, holdfast(root))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.end()) }()
	theirs, err := start(b.folder, number, torchrun())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.end()) }()
	m := &measurement{ours: ours, theirs: theirs}
	if err := m.settle(ctx, b.say); err != nil {
		return err
	}
	from, began := ours.agents(), time.Now()
	var groups []group
	for i := range b.groups.Or(b.Quick, quickGroups, usualGroups) {
		g, err := m.group(ctx, i)
		if err != nil {
			return err
		}
		groups = append(groups, g)
	}
	b.note(groups, from, ours.agents(), time.Since(began))
	b.say("round %d: %s", number, b.summary())
	if still {
		return b.still(ctx, m)
	}
	return nil
}

// stillFor is how long ranks stand still: agents look three times, 15, 20 and 25 s after the last step (package quiet).
const stillFor = 30 * time.Second

// still measures what the ranks' processes use while they make no steps and Holdfast's agent looks at them.
func (b *bench) still(ctx context.Context, m *measurement) error {
	b.say("both stand still for %s", stillFor)
	before, err := m.both(ctx)
	if err != nil {
		return err
	}
	agents := m.ours.agents()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(stillFor):
	}
	looked := m.ours.agents().cpu - agents.cpu
	after, err := m.both(ctx)
	if err != nil {
		return err
	}
	for i, system := range jobs {
		b.Add(kase, system, stillCPU, "ms", 1000*(after[i].before-before[i].after)/ranks)
	}
	b.Add(kase, systemHoldfast, agentStillCPU, "ms", 1000*looked)
	return nil
}
