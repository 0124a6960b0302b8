//go:build linux

// Command bench-checkpoint measures the cost of saving and restoring the state of a rank, and compares Holdfast with
// memcpy of the same bytes and with PyTorch's methods. All systems hold the same tensors and take turns within each
// round. Restored values are compared one by one before a time counts. The output shows each goal that was missed.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/ckptagent/store/child"
	"holdfast.dev/holdfast/test/bench/figure"
)

// benchName is the benchmark's name in every line.
const benchName = "checkpoint"

// timeLimit bounds the whole run.
const timeLimit = 20 * time.Minute

const (
	holdfast  = "holdfast"
	memcpy    = "memcpy"
	direct    = "direct"
	torchSave = "torch.save"
	torchSync = "torch.save+fsync"
	dcpThread = "dcp-thread"
)

var systems = []string{memcpy, holdfast, dlrover, torchSave, torchSync, dcpThread, direct}

// others are the systems besides Holdfast that save a state.
var others = []string{dlrover, torchSave, torchSync, dcpThread}

// restores are the ways in which killed processes of a system restore a state, one after another.
var restores = map[string][]string{
	memcpy:    {memcpy},
	holdfast:  {holdfast, skipInit, standby, standbySkipInit},
	dlrover:   {dlrover, dlroverViews},
	torchSave: {torchSave},
}

// shape is a case: a number of ranks with a number of bytes each.
type shape struct {
	name  string
	ranks int
	bytes int64
	// memory is what all systems that run at once need; with alone, each system has the machine to itself during its turn.
	memory int64
	alone  bool
	// killsOnly: only kills are measured, with so little state that the rest of a restart remains.
	killsOnly bool
	// device: the state lies on a CUDA device.
	device bool
	// slots is the number of slots of the arena; 0: the default.
	slots uint32
}

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

var (
	full = []shape{
		{name: "1GiB", ranks: 1, bytes: gib, memory: 19 * gib},
		{name: "4x512MiB", ranks: 4, bytes: 512 * mib, memory: 12 * gib, alone: true},
		little,
	}
	// little is the case of a restart with next to no state.
	little = shape{name: "1MiB", ranks: 1, bytes: mib, memory: 4 * gib, killsOnly: true}
	quick  = []shape{{name: "64MiB", ranks: 1, bytes: 64 * mib, memory: 4 * gib}}
)

type options struct {
	figure.Common
	systems, cases figure.Names
	turns, many    figure.Count
	python         figure.Path
	disk           figure.Path
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "storage" { // the child that storageProcess starts
		if err := child.Serve(store.OS{}, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	o := options{
		systems: figure.OneOf(systems...),
		cases: figure.OneOf(
			full[0].name,
			full[1].name,
			little.name,
			quick[0].name,
			deviceShapes[0].name,
			deviceShapes[1].name,
			deviceShapes[2].name,
		),
		python: "/opt/holdfast-python/venv/bin/python3",
		disk:   "/var/tmp",
	}
	cmd := &cobra.Command{
		Use:   "bench-checkpoint",
		Short: "Measure saves and restores of a rank's state, next to memcpy, torch.save and DCP",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "one turn with 64 MiB")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(systems, ", "))
	f.Var(&o.cases, "cases", "measure these cases only: 1GiB, 4x512MiB, 1MiB, 64MiB; where --python sees a CUDA device, and only if named: cuda-1GiB, cuda-4GiB, cuda-20GiB")
	f.Var(&o.turns, "turns", "number of turns, each with new processes of every system (default 5, 1 with --quick)")
	f.Var(&o.many, "saves", "number of saves for the p95, holdfast and memcpy only (default 200, 5 with --quick)")
	f.Var(&o.python, "python", "an interpreter with PyTorch")
	f.Var(&o.disk, "disk", "a folder on the disk for durable copies")
	return cmd
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	began := time.Now()
	if err := o.Begin(benchName); err != nil {
		return err
	}
	usual := full
	if o.Quick {
		usual = quick
	}
	chosen := figure.Chosen(systems, systems, func(s string) string { return s }, o.systems)
	b := &bench{options: o, set: figure.NewSet(benchName), progress: progress, chosen: chosen}
	err := b.run(ctx, figure.Chosen(usual, slices.Concat(full, quick, deviceShapes), func(s shape) string { return s.name }, o.cases))
	result := figure.Result{Common: &o.Common, Rows: rows(b.set), Goals: goalsFor(b.set), Began: began, Limit: timeLimit, Broken: err}
	return result.Conclude(out, progress)
}

// goal bounds a ratio: a metric of holdfast, or of one of its ways to restore, as a multiple of a metric of another system.
type goal struct {
	metric, system, of string
	name               string
	most               float64
	way                string
}

var goals = []goal{
	{metric: "blocking_stall", system: memcpy, of: "blocking_stall", name: "blocking_stall_vs_memcpy", most: 1.25},
	{metric: "first_stall", system: holdfast, of: "blocking_stall", name: "first_stall_vs_steady", most: 1.3},
	{metric: "durable", system: direct, of: "durable", name: "durable_vs_direct", most: 1.3},
	{metric: "durable", system: dlrover, of: "durable", name: "durable_vs_dlrover", most: 1},
	{metric: "step_persisting", system: holdfast, of: "step_busy", name: "step_persisting_vs_alone", most: 1.05},
	{metric: "step_checksums", system: holdfast, of: "step_free", name: "step_checksums_vs_alone", most: 1.05},
	{metric: "restore", system: memcpy, of: "restore", name: "restore_vs_memcpy", most: 1.1},
	{metric: "restore", system: dlrover, of: "restore", name: "restore_vs_dlrover", most: 1},
	{metric: "kill_to_step", system: dlrover, of: "kill_to_step", name: "kill_to_step_vs_dlrover", most: 1},
	{metric: "kill_to_step", system: dlrover, of: "kill_to_step", name: "kill_to_step_vs_dlrover", most: 0.6, way: standby},
}

// parts have no bound: they show which part of a goal takes the time, and how others compare.
var parts = []goal{
	{metric: "persist", system: direct, of: "durable", name: "persist_vs_direct"},
	{metric: "durable", system: dlrover, of: "complete", name: "durable_vs_dlrover_complete"},
	{metric: "restore", system: torchSave, of: "load", name: "restore_vs_torch.load"},
	{metric: "restore_cpu", system: memcpy, of: "restore_cpu", name: "restore_cpu_vs_memcpy"},
	{metric: "restore_cpu", system: dlrover, of: "restore_cpu", name: "restore_cpu_vs_dlrover"},
	{metric: "start_cpu", system: dlrover, of: "start_cpu", name: "start_cpu_vs_dlrover"},
	{metric: "start_cpu", system: dlrover, of: "start_cpu", name: "start_cpu_vs_dlrover", way: skipInit},
	{metric: "save_cpu", system: memcpy, of: "save_cpu", name: "save_cpu_vs_memcpy"},
	{metric: "kill_to_step", system: dlrover, of: "kill_to_step", name: "kill_to_step_vs_dlrover", way: skipInit},
	{metric: "kill_to_step", system: dlrover, of: "kill_to_step", name: "kill_to_step_vs_dlrover", way: standbySkipInit},
}

// key is the key of one of the rows of holdfast or of a way.
func (g goal) key(kase, metric string) figure.Key {
	return figure.Key{Case: kase, System: cmp.Or(g.way, holdfast), Metric: metric}
}

// rows returns the figures, and Holdfast's as multiples of the others'.
func rows(set *figure.Set) []figure.Figure {
	all := set.Figures()
	for _, kase := range set.Cases() {
		compared := slices.Concat(goalsOf(kase), parts)
		for _, metric := range []string{"blocking_stall", "first_stall", "durable", "kill_to_step"} {
			for _, other := range others {
				more := goal{metric: metric, system: other, of: metric, name: metric + "_vs_" + other}
				if !slices.ContainsFunc(compared, func(g goal) bool { return g.name == more.name && g.way == "" }) {
					compared = append(compared, more)
				}
			}
		}
		for _, g := range compared {
			all = append(all, set.Ratio(g.key(kase, g.metric), figure.Key{Case: kase, System: g.system, Metric: g.of}, g.name, figure.Times)...)
		}
	}
	return all
}

// goalsFor returns the goals of the measured cases.
func goalsFor(set *figure.Set) (all []figure.Goal) {
	for _, kase := range set.Cases() {
		if kase == little.name {
			continue
		}
		for _, g := range goalsOf(kase) {
			if g.system == dlrover && len(set.Samples(kase, dlrover, notInstalled)) > 0 {
				continue
			}
			all = append(all, figure.Goal{Key: g.key(kase, g.name), Bound: g.most})
		}
	}
	return all
}
