// Command bench-recovery measures what the death of one rank costs: the time from kill -9 to the first new step on all
// ranks. Holdfast with and without warm standbys, and torchrun, are measured in one run, in the same pods, with the
// same script. The systems differ only by annotations and environment. All times come from the script's output. The
// output shows each goal that was missed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

// benchName is the benchmark's name in every line.
const benchName = "recovery"

// timeLimit bounds the whole run.
const timeLimit = 25 * time.Minute

type options struct {
	figure.Common
	systems, shapes figure.Names
	kills           figure.Count
}

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	o := options{systems: figure.OneOf(full.systems...), shapes: figure.OneOf(onePod.name, twoPods.name, plain.name)}
	cmd := &cobra.Command{
		Use:   "bench-recovery",
		Short: "Measure the time from the death of one rank to the first new step on all ranks, next to torchrun",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "one case and one kill per system")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(full.systems, ", "))
	f.Var(&o.shapes, "shapes", "measure these shapes only: "+onePod.name+", "+twoPods.name+", "+plain.name+" (a script without the client, on one pod)")
	f.Var(&o.kills, "kills", fmt.Sprintf("kills per case and system (default %d, %d with --quick)", full.kills, quick.kills))
	return cmd
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	began := time.Now()
	p, err := o.plan()
	if err == nil {
		err = o.Begin(benchName)
	}
	if err != nil {
		return err
	}
	c, err := startCluster(ctx, o.Root(), progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	b := &bench{w: c.World, plan: p, results: newResults()}
	broken := b.run(ctx)
	result := figure.Result{
		Common: &o.Common,
		Rows:   b.results.figures(),
		Goals:  b.results.goals(),
		Began:  began,
		Limit:  timeLimit,
		Broken: broken,
	}
	return result.Conclude(out, progress)
}

func (o options) plan() (plan, error) {
	p := full
	if o.Quick {
		p = quick
	}
	p.kills = o.kills.Or(o.Quick, quick.kills, full.kills)
	p.systems = figure.Chosen(p.systems, full.systems, func(s string) string { return s }, o.systems)
	p.shapes = figure.Chosen(p.shapes, full.shapes, func(s shape) string { return s.name }, o.shapes)
	switch {
	case o.shapes.Given() && slices.ContainsFunc(p.shapes, shape.plain) && len(p.turns(plain)) == 0:
		return p, fmt.Errorf("--systems: a plain script is measured under %s: name one of them", strings.Join(plainSystems, " and "))
	case o.kills > 0 && slices.Equal(p.systems, []string{systemAsComes}):
		return p, fmt.Errorf("--kills: one kill shows that %s does not recover: leave the flag out, or name another of --systems", systemAsComes)
	}
	return p, nil
}

// startCluster starts a one-machine cluster of two real nodes and installs Holdfast by the manifests that a user would apply.
func startCluster(ctx context.Context, root string, progress io.Writer) (*harness.Cluster, error) {
	source, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Name: "bench", Nodes: 2, Replace: true, Out: progress})
	if err != nil {
		return nil, err
	}
	if err := c.Install(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("installing Holdfast: %w", err), c.Down())
	}
	return c, nil
}
