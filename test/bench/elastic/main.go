// Command bench-elastic measures what a lost pod costs a job that goes on with fewer, and what it costs to take a pod in: the time to the
// first new step of all ranks, the steps done again, and the samples repeated or skipped. Holdfast and other launchers run the same script,
// in turns, in one run. The output shows each goal that was missed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
const benchName = "elastic"

const (
	// timeLimit bounds the whole run with the default flags.
	timeLimit = 15 * time.Minute
	// waitSeconds and waitSecondsQuick are how long a launcher's step is waited for.
	waitSeconds, waitSecondsQuick = 120, 60
)

type options struct {
	figure.Common
	systems      figure.Names
	repeat, wait figure.Count
}

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	names := []string{systemHoldfast, systemTorchrun, systemDLRover}
	o := options{systems: figure.OneOf(names...)}
	cmd := &cobra.Command{
		Use:   "bench-elastic",
		Short: "Measure what a lost pod and a pod that joins cost a job with a minimum of pods, next to other launchers",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "Holdfast and torchrun, once")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(names, ", "))
	f.Var(&o.repeat, "repeat", "how often Holdfast loses and gets a pod (default 3, 1 with --quick); once under each other launcher")
	f.Var(&o.wait, "wait", fmt.Sprintf("seconds to wait for the step of another launcher (default %d, %d with --quick)", waitSeconds, waitSecondsQuick))
	return cmd
}

func (o options) limit() time.Duration {
	return time.Duration(o.wait.Or(o.Quick, waitSecondsQuick, waitSeconds)) * time.Second
}

// bench is one run; cluster is nil where Holdfast is not measured.
type bench struct {
	options
	*results
	cluster *harness.Cluster
	folder  string
	say     func(format string, args ...any)
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	began := time.Now()
	if o.repeat > 0 && !o.systems.Include(systemHoldfast) {
		return errors.New("--repeat: the other launchers play once: leave it out, or name holdfast in --systems")
	}
	if err := o.Begin(benchName); err != nil {
		return err
	}
	b := &bench{options: o, results: newResults(), say: figure.Say(progress, began)}
	if b.folder, err = os.MkdirTemp("", "bench-elastic-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if o.systems.Include(systemHoldfast) {
		if err := b.startCluster(ctx, progress); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.cluster.Down()) }()
	}
	broken := b.measure(ctx)
	result := figure.Result{Common: &o.Common, Rows: b.figures(), Goals: b.goals(), Began: began, Limit: timeLimit, Broken: broken}
	return result.Conclude(out, progress)
}

// startCluster starts a cluster of two real nodes and installs Holdfast by the manifests that a user would apply, with the control plane on
// the node that is not lost.
func (b *bench) startCluster(ctx context.Context, progress io.Writer) error {
	source, err := filepath.Abs(b.Root())
	if err != nil {
		return err
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Name: "bench", Nodes: pods, Replace: true, Out: progress})
	if err != nil {
		return err
	}
	if err := errors.Join(c.InstallOn(ctx, c.Nodes()[0]), furnish(ctx, c.World)); err != nil {
		return errors.Join(fmt.Errorf("installing Holdfast: %w", err), c.Down())
	}
	b.cluster = c
	return nil
}

// measure runs all systems in turns, the other launchers in the first one alone. A system that failed has no figures and no further turns.
func (b *bench) measure(ctx context.Context) error {
	var failed []error
	broken := map[string]bool{}
	for i := range figure.Repeats(b.repeat, b.Quick) {
		for _, s := range b.turns() {
			if broken[s.name] || i > 0 && s.name != systemHoldfast {
				continue
			}
			if err := s.play(ctx, i+1); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				b.say("%s: BROKEN: %v", s.name, err)
				failed, broken[s.name] = append(failed, fmt.Errorf("%s: %w", s.name, err)), true
				b.forget(s.name)
			}
		}
	}
	return errors.Join(failed...)
}

// turn is a system, and how it loses and gets a pod once.
type turn struct {
	name string
	play func(ctx context.Context, n int) error
}

// turns are the systems to measure, in their order.
func (b *bench) turns() []turn {
	known := []turn{{systemHoldfast, b.underHoldfast}}
	for _, l := range launchers {
		known = append(known, turn{l.name, func(ctx context.Context, n int) error { return b.underLauncher(ctx, &l, n) }})
	}
	usual := known
	if b.Quick {
		usual = known[:2] // torchrun needs no other package
	}
	return figure.Chosen(usual, known, func(t turn) string { return t.name }, b.systems)
}

// forget drops the rows of a system; the limit is measured in Holdfast's job.
func (b *bench) forget(system string) {
	for _, kase := range b.Cases() {
		b.Forget(kase, system)
		if system == systemHoldfast {
			b.Forget(kase, systemLimit)
		}
	}
}
