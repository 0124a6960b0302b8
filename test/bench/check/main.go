// Command bench-check measures how long a node check of healthy pods takes before the first generation, and by how much it delays the start
// of a gang: with torch on a node that has not read it yet, with torch in the node's memory, and on a node that has passed a check.
// dlrover-run's node check of as many nodes and ranks runs in the same run. The output shows each goal that was missed.
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
const benchName = "check"

// timeLimit bounds the whole run with the default flags.
const timeLimit = 30 * time.Minute

type options struct {
	figure.Common
	systems figure.Names
	repeat  figure.Count
}

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	names := []string{systemHoldfast, systemUnchecked, systemDLRover}
	o := options{systems: figure.OneOf(names...)}
	cmd := &cobra.Command{
		Use:   "bench-check",
		Short: "Measure the node check of healthy pods before training, and the delay of their start, next to dlrover-run's node check",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "Holdfast alone, once")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(names, ", "))
	f.Var(&o.repeat, "repeat", "how often each system plays each case (default 3, 1 with --quick)")
	return cmd
}

// chosen reports whether a system is measured. A quick run needs no other package.
func (o options) chosen(system string) bool {
	if o.Quick && !o.systems.Given() {
		return system != systemDLRover
	}
	return o.systems.Include(system)
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
	if b.folder, err = os.MkdirTemp("", "bench-check-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if o.chosen(systemHoldfast) || o.chosen(systemUnchecked) {
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
	c, err := harness.Up(ctx, source, devcluster.Options{
		Name: "bench-check", Nodes: 1, Args: []string{fmt.Sprintf("--gpus=%d", pods)}, Replace: true, Out: progress,
	})
	if err != nil {
		return nil, err
	}
	b.w = c.World
	if err := errors.Join(c.Install(ctx), b.furnish(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("installing Holdfast: %w", err), c.Down())
	}
	return c, nil
}

// measure plays all cases under all systems, in turns. A failed trial does not stop the others, and has no figures.
func (b *bench) measure(ctx context.Context) error {
	var broken []error
	for n := range b.repeat.Or(b.Quick, 1, 3) {
		for _, kase := range cases {
			for _, s := range systems {
				if !b.chosen(s.name) || kase == casePassed && s.name == systemDLRover {
					continue
				}
				if err := b.prepare(ctx, kase); err != nil {
					return err
				}
				if err := s.play(ctx, b, kase, fmt.Sprintf("%s-%s-%d", s.short, kase, n+1)); err != nil {
					broken = append(broken, fmt.Errorf("%s, %s: %w", kase, s.name, err))
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
	}
	return errors.Join(broken...)
}

// prepare drops what the kernel keeps of files in memory before a cold case, and notes a pass on the node before case passed.
func (b *bench) prepare(ctx context.Context, kase string) error {
	switch kase {
	case caseCold:
		return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o644)
	case casePassed:
		return b.notePass(ctx)
	}
	return nil
}
