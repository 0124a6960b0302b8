//go:build linux

// Command bench-checkpoint measures the cost of saving and restoring the state of a rank, next to memcpy of the same
// bytes and to PyTorch's methods, in one run. It promises that all systems hold the same tensors, that
// they take turns within each round, that restored values are compared one by one before the time counts, and that a
// missed goal is shown, never hidden.
package main

import (
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

// benchName is in every line.
const benchName = "checkpoint"

// timeLimit is what the whole run may take.
const timeLimit = 20 * time.Minute

const (
	holdfast  = "holdfast"
	memcpy    = "memcpy"
	direct    = "direct"
	torchSave = "torch.save"
	torchSync = "torch.save+fsync"
	dcpThread = "dcp-thread"
)

var systems = []string{memcpy, holdfast, torchSave, torchSync, dcpThread, direct}

// rivals are those that keep a state, beside ours.
var rivals = []string{torchSave, torchSync, dcpThread}

// restores are the systems whose processes are killed and bring a state back.
var restores = map[string]bool{memcpy: true, holdfast: true, torchSave: true}

// shape is a case: so many ranks with so many bytes each.
type shape struct {
	name  string
	ranks int
	bytes int64
	// memory is what all systems need that run at once, and alone says that each has the machine to itself for its turn.
	memory int64
	alone  bool
	// killsOnly says that nothing but kills counts: so little state that the rest of a restart is left.
	killsOnly bool
	// device says that the state lies on a CUDA device.
	device bool
	// slots are how many the arena has; 0: as many as usual.
	slots uint32
}

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

var (
	full = []shape{
		{name: "1GiB", ranks: 1, bytes: gib, memory: 17 * gib},
		{name: "4x512MiB", ranks: 4, bytes: 512 * mib, memory: 12 * gib, alone: true},
		little,
	}
	// little is what kills of more are compared with.
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
	if len(os.Args) == 2 && os.Args[1] == "storage" { // what storageProcess starts
		if err := child.Serve(store.OS{}, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out and what is for people to progress.
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
	f.Var(&o.cases, "cases", "measure these cases only: 1GiB, 4x512MiB, 1MiB, 64MiB; where --python sees a CUDA device, and never by themselves: cuda-1GiB, cuda-4GiB, cuda-20GiB")
	f.Var(&o.turns, "turns", "how often every system's processes are started anew (default 5, 1 with --quick)")
	f.Var(&o.many, "saves", "how many saves the p95 is of, holdfast and memcpy only (default 200, 5 with --quick)")
	f.Var(&o.python, "python", "an interpreter with PyTorch")
	f.Var(&o.disk, "disk", "a folder on the disk that durable copies go to")
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

// goal is a bound of a ratio: a metric of holdfast as a multiple of the same or another metric of another system.
type goal struct {
	metric, system, of string
	name               string
	most               float64
}

var goals = []goal{
	{"blocking_stall", memcpy, "blocking_stall", "blocking_stall_vs_memcpy", 1.25},
	{"first_stall", holdfast, "blocking_stall", "first_stall_vs_steady", 1.3},
	{"durable", direct, "durable", "durable_vs_direct", 1.3},
	{"step_persisting", holdfast, "step_busy", "step_persisting_vs_alone", 1.05},
	{"step_checksums", holdfast, "step_free", "step_checksums_vs_alone", 1.05},
	{"restore", memcpy, "restore", "restore_vs_memcpy", 1.5},
	{"restore", torchSave, "load", "restore_vs_torch.load", 0.3},
}

// parts have no bound of their own: they say where the time of a goal goes.
var parts = []goal{
	{metric: "persist", system: direct, of: "durable", name: "persist_vs_direct"},
}

// mostBeyond is how much longer a kill may cost with the state of a shape than with little.
const mostBeyond = 1.5

// key is the row of one of ours.
func key(kase, metric string) figure.Key {
	return figure.Key{Case: kase, System: holdfast, Metric: metric}
}

const beyondLittle = "kill_to_step_beyond_1MiB"

// rows are the figures, and ours as multiples of the others'.
func rows(set *figure.Set) []figure.Figure {
	all := set.Figures()
	for _, kase := range set.Cases() {
		for _, g := range slices.Concat(goalsOf(kase), parts) {
			all = append(all, set.Ratio(key(kase, g.metric), figure.Key{Case: kase, System: g.system, Metric: g.of}, g.name, figure.Times)...)
		}
		all = append(all, set.Ratio(key(kase, "save_cpu"), figure.Key{Case: kase, System: memcpy, Metric: "save_cpu"}, "save_cpu_vs_memcpy", figure.Times)...)
		for _, metric := range []string{"blocking_stall", "durable", "kill_to_step"} {
			for _, other := range rivals {
				all = append(all, set.Ratio(key(kase, metric), figure.Key{Case: kase, System: other, Metric: metric}, metric+"_vs_"+other, figure.Times)...)
			}
		}
		mine, ok := set.Median(kase, holdfast, "kill_to_step")
		base, known := set.Median(little.name, holdfast, "kill_to_step")
		if ok && known && kase != little.name {
			all = append(all, set.Figure(key(kase, beyondLittle), mine-base, "s", len(set.Samples(kase, holdfast, "kill_to_step"))))
		}
	}
	return all
}

// goalsFor are the goals of the cases that were measured.
func goalsFor(set *figure.Set) (all []figure.Goal) {
	for _, kase := range set.Cases() {
		if kase == little.name { // what others are compared with
			continue
		}
		for _, g := range goalsOf(kase) {
			all = append(all, figure.Goal{Key: key(kase, g.name), Bound: g.most})
		}
		if !isOnDevice(kase) {
			all = append(all, figure.Goal{Key: key(kase, beyondLittle), Bound: mostBeyond})
		}
	}
	return all
}
