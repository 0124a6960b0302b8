// Command bench-kinds measures, for each kind of job, how long training stops when a rank dies and when a node dies:
// with Holdfast, and for the same job without Holdfast's annotation, which the kind's own controller restarts by the
// kind's usual policy. The output shows each goal that was missed.
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
const benchName = "kinds"

// The systems of the table: systemOwn is the kind's own controller, without Holdfast.
const (
	systemOwn      = "own"
	systemHoldfast = "holdfast"
)

const (
	// nodes is one for all controllers, one for each pod and one spare.
	nodes = 2 + ranks
	// timeLimit bounds the whole run.
	timeLimit = 20 * time.Minute
	// startLimit bounds the time until a job trains, and recoverLimit the time until it trains again under Holdfast: longer is a failure.
	startLimit, recoverLimit = 3 * time.Minute, 2 * time.Minute
	// ownSeconds and ownSecondsQuick are how long a job without Holdfast is waited for.
	ownSeconds, ownSecondsQuick = 90, 15
)

type options struct {
	figure.Common
	kinds  figure.Names
	repeat figure.Count
	wait   figure.Count
}

// bench is one run on one cluster.
type bench struct {
	options
	*figure.Set
	*harness.Cluster
}

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	o := options{kinds: figure.OneOf(names...)}
	cmd := &cobra.Command{
		Use:   "bench-kinds",
		Short: "Measure the time from the death of a rank and of a node to the first new step, for each kind of job, with and without Holdfast",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "kind Job alone")
	f.Var(&o.kinds, "kinds", "measure these kinds only: "+strings.Join(names, ", "))
	f.Var(&o.repeat, "repeat", "how many ranks of each job are killed (default 2, 1 with --quick)")
	f.Var(&o.wait, "wait", fmt.Sprintf("seconds to wait for a job without Holdfast to train again (default %d, %d with --quick)", ownSeconds, ownSecondsQuick))
	return cmd
}

func (o options) repeats() int { return o.repeat.Or(o.Quick, 1, 2) }

func (o options) ownLimit() time.Duration {
	return time.Duration(o.wait.Or(o.Quick, ownSecondsQuick, ownSeconds)) * time.Second
}

func (o options) chosen() []kind {
	usual := kinds
	if o.Quick {
		usual = kinds[:1] // it needs no other project's controller
	}
	return figure.Chosen(usual, kinds, kind.String, o.kinds)
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	began := time.Now()
	if err := o.Begin(benchName); err != nil {
		return err
	}
	source, err := filepath.Abs(o.Root())
	if err != nil {
		return err
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Name: "bench-kinds", Nodes: nodes, Replace: true, Out: progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	b := &bench{options: o, Set: figure.NewSet(benchName), Cluster: c}
	if err := b.furnish(ctx, o.chosen()); err != nil {
		return err
	}
	var broken error
	for _, k := range o.chosen() {
		broken = errors.Join(broken, b.measure(ctx, k))
		if ctx.Err() != nil {
			break
		}
	}
	result := figure.Result{
		Common: &o.Common,
		Rows:   b.rows(),
		Goals:  goals(o.chosen()),
		Began:  began,
		Limit:  timeLimit,
		Broken: broken,
	}
	return result.Conclude(out, progress)
}

// furnish installs Holdfast and the controllers of the kinds on the node that is spared, and creates the objects that all jobs share.
func (b *bench) furnish(ctx context.Context, of []kind) error {
	if err := b.InstallOn(ctx, b.Nodes()[0]); err != nil {
		return fmt.Errorf("installing Holdfast: %w", err)
	}
	if err := figure.Each(len(of), of, func(k kind) error { // each mostly waits for certificates
		if k.operator == nil {
			return nil
		}
		return k.operator.Install(ctx, b.Cluster, b.Nodes()[0])
	}); err != nil {
		return err
	}
	for _, o := range room() {
		if err := b.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// measure measures one kind, first without Holdfast. If either fails or is interrupted, that system has no figures of the kind.
func (b *bench) measure(ctx context.Context, k kind) (err error) {
	for _, system := range []string{systemOwn, systemHoldfast} {
		b.Say("%s, %s", k.name, system)
		if failed := b.faults(ctx, k, system); failed != nil {
			b.Forget(k.name, system)
			b.Say("  no figures of %s, %s: %v", k.name, system, failed)
			err = errors.Join(err, fmt.Errorf("%s, %s: %w", k.name, system, failed))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return err
}

// Metrics of a fault begin with its name.
const (
	rankKilled = "rank_killed"
	nodeLost   = "node_lost"
	// toStep is the time from the fault to the first new step of the last rank; notWithin is for how long there was none.
	toStep, notWithin = "_s", "_not_within_s"
	vsOwn             = "_vs_own"
)

// rows are the figures and the ratios of the two systems. Where the job without Holdfast did not train again, the time that was waited for
// it counts, so that its true ratio is smaller.
func (b *bench) rows() []figure.Figure {
	all := b.Figures()
	for _, kase := range b.Cases() {
		for _, fault := range []string{rankKilled, nodeLost} {
			mine := b.Samples(kase, systemHoldfast, fault+toStep)
			theirs := slices.Concat(b.Samples(kase, systemOwn, fault+toStep), b.Samples(kase, systemOwn, fault+notWithin))
			if len(mine) == 0 || len(theirs) == 0 {
				continue
			}
			key := figure.Key{Case: kase, System: systemHoldfast, Metric: fault + vsOwn}
			all = append(all, b.Figure(key, figure.Median(mine)/figure.Median(theirs), figure.Times, min(len(mine), len(theirs))))
		}
	}
	return all
}

// goals returns the goals of these kinds. That of a lost node is no ratio, which would depend on --wait.
func goals(all []kind) (out []figure.Goal) {
	for _, k := range all {
		of := func(metric string) figure.Key {
			return figure.Key{Case: k.name, System: systemHoldfast, Metric: metric}
		}
		out = append(out, figure.Goal{Key: of(rankKilled + vsOwn), Bound: 0.2}, figure.Goal{Key: of(nodeLost + toStep), Bound: 30})
	}
	return out
}
