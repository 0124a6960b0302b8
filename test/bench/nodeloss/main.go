// Command bench-node-loss measures what the loss of nodes costs, one file per case. It promises that the limit of the same
// machine stands next to each figure, measured in the same run, and that a missed goal is shown, never hidden.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"holdfast.dev/holdfast/test/bench/figure"
)

// The systems of the table.
const (
	systemHoldfast = "holdfast"
	systemTorchrun = "torchrun"
	systemLimit    = "limit"
	systemEviction = "eviction alone"
)

type kase struct {
	name, what string
	run        func(context.Context, *bench) error
}

// cases are all that can be measured. Those on real nodes share a cluster, and so do those on simulated nodes.
var cases = []kase{
	{"bare", "a bare pod, the script's cold start and a drain, all without Holdfast", bare},
	{"gpu-lost", "a GPU falls off the bus under a pod of the job", gpuLost},
	{"drain", "kubectl drain of a node with a pod of the job", drain},
	{"dead-node", "everything on a node of the job is killed", deadNode},
	// This one first: the Jobs of the other go on making pods long after it was measured.
	{"cordon", "simulated nodes with a fatal verdict to outage and taint", cordon},
	{"evict", "pods of gangs on simulated nodes taken out of their Jobs and evicted", evict},
}

// timeLimit is what the whole run may take.
const timeLimit = 12 * time.Minute

// goal is a bound of a metric's median, or of its worst sample where each must hold.
type goal struct {
	kase, metric string
	bound        float64
	least, each  bool
}

var goals = []goal{
	{kase: "cordon", metric: nodesPerSecond, bound: 50, least: true},
	{kase: "evict", metric: "vs_limit", bound: 0.8, least: true},
	{kase: "gpu-lost", metric: faultToTaint, bound: 1},
	{kase: "gpu-lost", metric: stepVsBare, bound: 1.5},
	{kase: "drain", metric: stepsRecomputed, bound: 0, each: true},
	{kase: "dead-node", metric: faultToReleased, bound: 20},
	// One interval, and the write that was under way.
	{kase: "dead-node", metric: trainingAgain, bound: storeSeconds + 2},
}

type options struct {
	quick, check bool
	source       string
	cases        []string
	nodes        int
	repeat       int
}

// bench is one run.
type bench struct {
	options
	*figure.Set
	sim      *sim  // nil until a case asked for it
	real     *real // the same
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
		Use:   "bench-node-loss",
		Short: "Measure what the loss of nodes costs",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, os.Stdout, os.Stderr) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "few nodes and pods: shows that everything works, not how fast it is")
	f.BoolVar(&o.check, "check", false, "fail when a goal is missed")
	f.StringVar(&o.source, "source", ".", "root of the source tree, with its binaries built")
	f.StringSliceVar(&o.cases, "cases", nil, "measure these cases only: "+strings.Join(names, ", ")+" (default: those on simulated nodes)")
	f.IntVar(&o.nodes, "nodes", 0, "simulated nodes (default 1500, 60 with --quick)")
	f.IntVar(&o.repeat, "repeat", 0, "how often a drain, the loss of a GPU and evictions are repeated (default 3, 1 with --quick)")
	figure.Main(cmd)
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
	var err error
	if o.repeat, err = figure.Repeats(o.repeat, o.quick); err != nil {
		return err
	}
	for _, name := range o.cases {
		if !slices.ContainsFunc(cases, func(c kase) bool { return c.name == name }) {
			return fmt.Errorf("--cases: there is no case %q", name)
		}
	}
	b := &bench{options: o, Set: newFigures(), progress: progress}
	for _, c := range cases {
		if slices.Contains(o.cases, c.name) || len(o.cases) == 0 {
			b.say("%s: %s", c.name, c.what)
			if failed := c.run(ctx, b); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", c.name, failed))
			}
		}
	}
	err = errors.Join(err, b.down())
	return errors.Join(err, b.Conclude(out, progress, figure.Result{Rows: b.Figures(), Verdicts: b.verdicts(), Began: began, Limit: timeLimit, Check: o.check}))
}

func newFigures() *figure.Set { return figure.NewSet("node-loss") }

// verdicts says of every goal what became of it.
func (b *bench) verdicts() (v figure.Verdicts) {
	for _, g := range goals {
		samples := b.Samples(g.kase, systemHoldfast, g.metric)
		if len(samples) == 0 {
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s: %s, the goal is %s %g", g.kase, g.metric, map[bool]string{true: "at least", false: "at most"}[g.least], g.bound))
			continue
		}
		got, how, word := figure.Median(samples), "", "at most"
		if g.each {
			got, how = slices.Max(samples), " at worst"
		}
		ok := got <= g.bound
		if g.least {
			ok, word = got >= g.bound, "at least"
		}
		v.Say(ok, fmt.Sprintf("%s: %s is %.3g%s, the goal is %s %g", g.kase, g.metric, got, how, word, g.bound))
	}
	return v
}
