// Command bench-node-loss measures what the loss of nodes costs, one file per case. It promises that the limit of the same
// machine stands next to each figure, measured in the same run, and that a missed goal is shown, never hidden.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"holdfast.dev/holdfast/test/bench/figure"
)

// The systems of the table.
const (
	systemHoldfast = "holdfast"
	systemLimit    = "limit"
)

type kase struct {
	name, what string
	run        func(context.Context, *bench) error
}

// cases are all that can be measured. Those on simulated nodes share a cluster, others start what they need and end it.
var cases = []kase{
	// This one first: the Jobs of the other go on making pods long after it was measured.
	{"cordon", "simulated nodes with a fatal verdict to outage and taint", cordon},
	{"evict", "pods of gangs on simulated nodes taken out of their Jobs and evicted", evict},
}

// goals are what a metric must reach at least.
var goals = []struct {
	kase, metric string
	least        float64
}{
	{"cordon", nodesPerSecond, 50},
	{"evict", podsPerSecond, 200},
}

type options struct {
	quick, check bool
	source       string
	cases        []string
	nodes        int
}

// bench is one run.
type bench struct {
	options
	*figure.Set
	sim      *sim // nil until a case asked for it
	progress io.Writer
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

func main() {
	ctrllog.SetLogger(logr.Discard()) // clients' errors are returned
	var o options
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	cmd := &cobra.Command{
		Use:           "bench-node-loss",
		Short:         "Measure what the loss of nodes costs",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, os.Stdout, os.Stderr) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "few nodes and pods: shows that everything works, not how fast it is")
	f.BoolVar(&o.check, "check", false, "fail when a goal is missed")
	f.StringVar(&o.source, "source", ".", "root of the source tree, with its binaries built")
	f.StringSliceVar(&o.cases, "cases", nil, "measure these cases only: "+strings.Join(names, ", "))
	f.IntVar(&o.nodes, "nodes", 0, "simulated nodes (default 1500, 60 with --quick)")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench-node-loss:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	began := time.Now()
	switch {
	case o.nodes < 0:
		return fmt.Errorf("--nodes=%d: give a number of nodes", o.nodes)
	case o.nodes == 0 && o.quick:
		o.nodes = 60
	case o.nodes == 0:
		o.nodes = 1500
	}
	for _, name := range o.cases {
		if !slices.ContainsFunc(cases, func(c kase) bool { return c.name == name }) {
			return fmt.Errorf("--cases: there is no case %q", name)
		}
	}
	b := &bench{options: o, Set: figure.NewSet("node-loss"), progress: progress}
	var err error
	for _, c := range cases {
		if len(o.cases) == 0 || slices.Contains(o.cases, c.name) {
			b.say("%s: %s", c.name, c.what)
			if failed := c.run(ctx, b); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", c.name, failed))
			}
		}
	}
	if b.sim != nil {
		err = errors.Join(err, b.sim.Down())
	}
	missed := b.missed()
	err = errors.Join(err, figure.WriteLines(out, b.Figures()), b.table(missed))
	b.say("  the run took %.0f s", time.Since(began).Seconds())
	if o.check {
		err = errors.Join(err, missed)
	}
	return err
}

// missed names every goal that was measured and not reached.
func (b *bench) missed() error {
	var out []error
	for _, g := range goals {
		if got, ok := b.Median(g.kase, systemHoldfast, g.metric); ok && got < g.least {
			out = append(out, fmt.Errorf("%s: %s is %.1f, the goal is at least %.0f", g.kase, g.metric, got, g.least))
		}
	}
	return errors.Join(out...)
}

// table writes the figures for people.
func (b *bench) table(missed error) error {
	tw := tabwriter.NewWriter(b.progress, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "\n  case\tsystem\tmetric\tmedian\tunit\tsamples")
	for _, f := range b.Figures() {
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%.4g\t%s\t%d\n", f.Case, f.System, f.Metric, f.Value, f.Unit, f.N)
	}
	if missed != nil {
		fmt.Fprintf(tw, "\nMISSED\n%v\n", missed)
	} else {
		fmt.Fprintln(tw, "\n  every goal that was measured was reached")
	}
	return tw.Flush()
}
