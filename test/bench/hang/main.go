// Command bench-hang measures what a rank that stands still costs: the time until a user is notified, whether the notice names the rank
// that the others wait for, and the time from the order to end the ranks to the first new step. Holdfast and other launchers play the same
// hangs with the same script in one run. The output shows each goal that was missed.
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
const benchName = "hang"

const (
	// timeLimit bounds the whole run with the default flags.
	timeLimit = 40 * time.Minute
	// waitSeconds and waitSecondsQuick are how long a hang is waited for: longer is none.
	waitSeconds, waitSecondsQuick = 150, 75
)

type options struct {
	figure.Common
	systems, faults figure.Names
	repeat, wait    figure.Count
}

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	names := []string{systemHoldfast}
	for _, l := range launchers {
		names = append(names, l.name)
	}
	o := options{systems: figure.OneOf(names...), faults: figure.OneOf(faults...)}
	cmd := &cobra.Command{
		Use:   "bench-hang",
		Short: "Measure the time from a rank's last step to the report that names it, and to the first new step, next to other launchers",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "Holdfast and torchrun, one fault")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(names, ", "))
	f.Var(&o.faults, "faults", "play these faults only: "+strings.Join(faults, ", "))
	f.Var(&o.repeat, "repeat", "how often each fault is played under Holdfast (default 3, 1 with --quick); once under each other launcher")
	f.Var(&o.wait, "wait", fmt.Sprintf("seconds to wait for a report and for new steps (default %d, %d with --quick)", waitSeconds, waitSecondsQuick))
	return cmd
}

func (o options) limit() time.Duration {
	return time.Duration(o.wait.Or(o.Quick, waitSecondsQuick, waitSeconds)) * time.Second
}

// chosenFaults are the faults to play.
func (o options) chosenFaults() []string {
	usual := faults
	if o.Quick {
		usual = []string{faultInside}
	}
	return figure.Chosen(usual, faults, func(s string) string { return s }, o.faults)
}

// chosenLaunchers are the other launchers to measure.
func (o options) chosenLaunchers() []launcher {
	usual := launchers
	if o.Quick {
		usual = launchers[:1] // it needs no other package
	}
	if o.systems.Given() {
		usual = nil
	}
	for _, l := range launchers {
		if o.systems.Given() && o.systems.Include(l.name) {
			usual = append(usual, l)
		}
	}
	return usual
}

// bench is one run; w is nil where Holdfast is not measured.
type bench struct {
	options
	*results
	w      *harness.World
	folder string
	say    func(format string, args ...any)
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	began := time.Now()
	if err := o.Begin(benchName); err != nil {
		return err
	}
	b := &bench{options: o, results: newResults(), say: figure.Say(progress, began)}
	if b.folder, err = os.MkdirTemp("", "bench-hang-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if o.systems.Include(systemHoldfast) {
		c, startErr := b.startCluster(ctx, progress)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, c.Down()) }()
	}
	broken := b.measure(ctx)
	result := figure.Result{Common: &o.Common, Rows: b.figures(), Goals: b.goals(), Began: began, Limit: timeLimit, Broken: broken}
	return result.Conclude(out, progress)
}

// startCluster starts a cluster of one real node and installs Holdfast by the manifests that a user would apply.
func (b *bench) startCluster(ctx context.Context, progress io.Writer) (*harness.Cluster, error) {
	source, err := filepath.Abs(b.Root())
	if err != nil {
		return nil, err
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Name: "bench-hang", Nodes: 1, Replace: true, Out: progress})
	if err != nil {
		return nil, err
	}
	b.w = c.World
	if err := errors.Join(c.Install(ctx), b.furnish(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("installing Holdfast: %w", err), c.Down())
	}
	return c, nil
}

// measure plays all faults under all systems. A failed trial does not stop the others, and has no figures.
func (b *bench) measure(ctx context.Context) error {
	var broken []error
	for _, fault := range b.chosenFaults() {
		if b.w != nil {
			for i := range b.repeat.Or(b.Quick, 1, 3) {
				if err := b.underHoldfast(ctx, fault, i+1); err != nil {
					broken = append(broken, fmt.Errorf("%s, %s: %w", fault, systemHoldfast, err))
				}
			}
		}
		if err := b.underLaunchers(ctx, fault); err != nil {
			broken = append(broken, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(broken...)
}
