//go:build linux

// Command bench-checkpoint measures the cost of saving and restoring the state of a rank, next to memcpy of the same
// bytes and to PyTorch's and DLRover's methods, in one run. It promises that all systems hold the same tensors, that
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
	dcpProc   = "dcp-process"
	dlrover   = "dlrover"
)

var systems = []string{memcpy, holdfast, torchSave, torchSync, dcpThread, dcpProc, dlrover, direct}

// restores are the systems whose processes are killed and bring a state back.
var restores = map[string]bool{memcpy: true, holdfast: true, torchSave: true, dlrover: true}

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
	dlroverPython  figure.Path
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
		python:        "/opt/holdfast-python/venv/bin/python3",
		dlroverPython: "/opt/holdfast-dlrover/bin/python3",
		disk:          "/var/tmp",
	}
	cmd := &cobra.Command{
		Use:   "bench-checkpoint",
		Short: "Measure saves and restores of a rank's state, next to memcpy, torch.save, DCP and DLRover",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "one turn with 64 MiB")
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(systems, ", "))
	f.Var(&o.cases, "cases", "measure these cases only: 1GiB, 4x512MiB, 1MiB, 64MiB; where --python sees a CUDA device, and never by themselves: cuda-1GiB, cuda-4GiB, cuda-20GiB")
	f.Var(&o.turns, "turns", "how often every system's processes are started anew (default 5, 1 with --quick)")
	f.Var(&o.many, "saves", "how many saves the p95 is of, holdfast and memcpy only (default 200, 5 with --quick)")
	f.Var(&o.python, "python", "an interpreter with PyTorch")
	f.Var(&o.dlroverPython, "dlrover-python", "an interpreter with DLRover and its PyTorch, as hack/dlrover.sh installs it")
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
	b := &bench{options: o, set: figure.NewSet(benchName), progress: progress}
	if err := b.choose(); err != nil {
		return err
	}
	err := b.run(ctx, figure.Chosen(usual, slices.Concat(full, quick, deviceShapes), func(s shape) string { return s.name }, o.cases))
	return b.set.Conclude(
		out,
		progress,
		figure.Result{Common: &o.Common, Rows: rows(b.set), Verdicts: verdicts(b.set, o.Quick), Began: began, Limit: timeLimit, Broken: err},
	)
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

// beyondLittle is how much longer a kill costs with the state of a case than with little.
func beyondLittle(set *figure.Set, kase string) []figure.Figure {
	mine, ok := set.Median(kase, holdfast, "kill_to_step")
	base, known := set.Median(little.name, holdfast, "kill_to_step")
	if !ok || !known || kase == little.name {
		return nil
	}
	n := min(len(set.Samples(kase, holdfast, "kill_to_step")), len(set.Samples(little.name, holdfast, "kill_to_step")))
	return []figure.Figure{set.Figure(figure.Key{Case: kase, System: holdfast, Metric: "kill_to_step_beyond_" + little.name}, mine-base, "s", n)}
}

// rows are the figures, and ours as multiples of the others'.
func rows(set *figure.Set) []figure.Figure {
	all := set.Figures()
	for _, kase := range set.Cases() {
		for _, g := range slices.Concat(goalsOf(kase), parts) {
			all = append(all, ratio(set, kase, g)...)
		}
		all = append(all, set.Ratio(kase, "save_cpu", holdfast, memcpy, "save_cpu_vs_memcpy", figure.Times)...)
		for _, metric := range []string{"blocking_stall", "durable", "kill_to_step"} {
			for _, other := range systems[2:] {
				if other != direct {
					all = append(all, set.Ratio(kase, metric, holdfast, other, metric+"_vs_"+other, figure.Times)...)
				}
			}
		}
		all = append(all, beyondLittle(set, kase)...)
	}
	return all
}

func ratio(set *figure.Set, kase string, g goal) []figure.Figure {
	mine, ok := set.Median(kase, holdfast, g.metric)
	theirs, known := set.Median(kase, g.system, g.of)
	if !ok || !known || theirs <= 0 {
		return nil
	}
	n := min(len(set.Samples(kase, holdfast, g.metric)), len(set.Samples(kase, g.system, g.of)))
	return []figure.Figure{set.Figure(figure.Key{Case: kase, System: holdfast, Metric: g.name}, mine/theirs, figure.Times, n)}
}

// verdicts says of every goal what became of it. One turn says nothing.
func verdicts(set *figure.Set, quick bool) (v figure.Verdicts) {
	for _, kase := range set.Cases() {
		if kase == little.name { // what others are compared with
			continue
		}
		for _, g := range goalsOf(kase) {
			got := ratio(set, kase, g)
			if len(got) == 0 || quick {
				v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s: %s, the goal is at most %.3g", kase, g.name, g.most))
				continue
			}
			v.Say(got[0].Value <= g.most, fmt.Sprintf("%s: %s is %.3g, the goal is at most %.3g", kase, g.name, got[0].Value, g.most))
		}
		if isOnDevice(kase) {
			continue
		}
		name := "kill_to_step beyond that of " + little.name
		if got := beyondLittle(set, kase); len(got) == 0 || quick {
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s: %s, the goal is at most %g s", kase, name, mostBeyond))
		} else {
			v.Say(got[0].Value <= mostBeyond, fmt.Sprintf("%s: %s is %.3g s, the goal is at most %g s", kase, name, got[0].Value, mostBeyond))
		}
	}
	return v
}
