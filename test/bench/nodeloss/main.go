// Command bench-node-loss measures what the loss of nodes costs; each case has a file of its own. Next to each figure
// the output shows the lower limit that the same machine allows, measured in the same run. The output shows each goal
// that was missed.
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
)

type kase struct {
	name, what string
	run        func(context.Context, *bench) error
	// simulated cases run on simulated nodes, as many as --nodes; repeated cases run --repeat times.
	simulated, repeated bool
}

// cases are all cases. Those on real nodes share a cluster.
var cases = []kase{
	{"bare", "a bare pod, the script's cold start and a drain, all without Holdfast", bare, false, true},
	{"gpu-lost", "a GPU falls off the bus under a pod of the job", gpuLost, false, true},
	{"drain", "kubectl drain of a node with a pod of the job", drain, false, true},
	{"dead-node", "everything on a node of the job is killed", deadNode, false, true},
	{"cordon", "simulated nodes with a fatal verdict to outage and taint", cordon, true, false},
}

// timeLimit bounds the whole run.
const timeLimit = 16 * time.Minute

var goals = []figure.Goal{
	{Key: ours("cordon", nodesPerSecond), Bound: 50, Least: true},
	{Key: ours("gpu-lost", faultToTaint), Bound: 1},
	{Key: ours("gpu-lost", stepVsBare), Bound: 0.8},
	{Key: ours("drain", stepsRecomputed), Bound: 0, Each: true},
	{Key: ours("dead-node", faultToReleased), Bound: 20},
	// One interval, and the write in progress.
	{Key: ours("dead-node", trainingAgain), Bound: storeSeconds + 2},
}

func ours(kase, metric string) figure.Key {
	return figure.Key{Case: kase, System: systemHoldfast, Metric: metric}
}

type options struct {
	figure.Common
	cases  figure.Names
	nodes  figure.Count
	repeat figure.Count
}

// bench is one run.
type bench struct {
	options
	*figure.Set
	sim      *sim  // nil until a case needs it
	real     *real // nil until a case needs it
	progress io.Writer
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

func main() {
	ctrllog.SetLogger(logr.Discard()) // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	o := options{cases: figure.OneOf(caseNames()...)}
	cmd := &cobra.Command{
		Use:   "bench-node-loss",
		Short: "Measure what the loss of nodes costs",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "few nodes and pods")
	f.Var(&o.cases, "cases", "measure these cases only: "+strings.Join(caseNames(), ", "))
	f.Var(&o.nodes, "nodes", fmt.Sprintf("simulated nodes, at least %d, %d with --quick (default 1500, 60 with --quick)", leastNodes, leastNodesQuick))
	f.Var(&o.repeat, "repeat", fmt.Sprintf("how often a bare pod and job, and each fault on real nodes are repeated (default 3, 1 with --quick; bare at least %d)", leastReferences))
	return cmd
}

func (c kase) String() string { return c.name }

func caseNames() (all []string) {
	for _, c := range cases {
		all = append(all, c.name)
	}
	return all
}

const leastNodes, leastNodesQuick = 100, 10

// refused returns an error for an option without effect, or for too few nodes.
func (o options) refused(chosen []kase) error {
	least := leastNodes
	if o.Quick {
		least = leastNodesQuick
	}
	switch {
	case o.nodes > 0 && !slices.ContainsFunc(chosen, func(c kase) bool { return c.simulated }):
		return errors.New("--nodes: none of the --cases has simulated nodes: leave the flag out")
	case o.nodes > 0 && int(o.nodes) < least:
		return fmt.Errorf("--nodes=%d: give at least %d, or %d with --quick", o.nodes, leastNodes, leastNodesQuick)
	case o.repeat > 0 && !slices.ContainsFunc(chosen, func(c kase) bool { return c.repeated }):
		return errors.New("--repeat: none of the --cases is repeated: leave the flag out")
	case o.repeat > 0 && o.repeat < leastReferences && !slices.ContainsFunc(chosen, func(c kase) bool { return c.repeated && c.name != "bare" }):
		return fmt.Errorf("--repeat=%d: case bare, the reference of others, is measured at least %d times: leave the flag out, or give more", o.repeat, leastReferences)
	}
	return nil
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	began := time.Now()
	chosen := figure.Chosen(cases, cases, kase.String, o.cases)
	err := o.refused(chosen)
	if err == nil {
		err = o.Begin(benchName)
	}
	if err != nil {
		return err
	}
	b := &bench{options: o, Set: newFigures(), progress: progress}
	for _, c := range chosen {
		err = errors.Join(err, b.measure(ctx, c))
		if ctx.Err() != nil {
			break
		}
	}
	err = errors.Join(err, b.down())
	return figure.Result{Common: &o.Common, Rows: b.lines(), Goals: goals, Began: began, Limit: timeLimit, Broken: err}.Conclude(out, progress)
}

// lines are the figures and their ratios to other systems.
func (b *bench) lines() []figure.Figure {
	plain, limit := ours("drain", faultToStep), ours("cordon", nodesPerSecond)
	plain.System, limit.System = systemTorchrun, systemLimit
	all := append(b.Figures(), b.Ratio(ours("drain", faultToStep), plain, faultToStep+"_vs_torchrun", figure.Times)...)
	return append(all, b.Ratio(ours("cordon", nodesPerSecond), limit, "vs_limit", figure.Share)...)
}

// measure runs one case. If it fails or is interrupted, it has no figures.
func (b *bench) measure(ctx context.Context, c kase) error {
	b.say("%s: %s", c.name, c.what)
	err := c.run(ctx, b)
	if err == nil {
		return nil
	}
	b.Forget(c.name)
	if ctx.Err() != nil {
		b.say("  broken off: no figures of %s", c.name)
		return ctx.Err()
	}
	b.say("  no figures of %s: %v", c.name, err)
	return fmt.Errorf("%s: %w", c.name, err)
}

// benchName is the benchmark's name in every line.
const benchName = "node-loss"

func newFigures() *figure.Set { return figure.NewSet(benchName) }
