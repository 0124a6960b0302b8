// Command bench-scheduler measures how long it takes until large gangs are placed. All systems are measured in the same
// run, on the same control plane, with the same pods, nodes and client limits. After each trial the command checks
// every pod. The output shows each goal that was missed.
package main

import (
	"cmp"
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
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"holdfast.dev/holdfast/test/bench/figure"
)

// benchName is the benchmark's name in every line.
const benchName = "scheduler"

// timeLimit bounds the whole run.
const timeLimit = 75 * time.Minute

type options struct {
	figure.Common
	cases, systems figure.Names
	repeat         figure.Count
	// writes measures policyCost, and no case.
	writes bool
}

// bench is one run.
type bench struct {
	options
	*figure.Set
	progress io.Writer
}

func main() {
	klog.SetLogger(klog.NewKlogr().V(9)) // a stopped watch is no error
	ctrllog.SetLogger(logr.Discard())    // errors of clients are returned, not logged
	figure.Main(command(os.Stdout, os.Stderr))
}

// command writes lines to out, and output for users to progress.
func command(out, progress io.Writer) *cobra.Command {
	o := options{cases: figure.OneOf(names(cases(false), kase.String)...), systems: figure.OneOf(names(systems, system.String)...)}
	cmd := &cobra.Command{
		Use:   "bench-scheduler",
		Short: "Measure how soon gangs are placed",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	f := cmd.Flags()
	o.AddFlags(f, "few nodes and pods")
	f.Var(&o.cases, "cases", "measure these cases only: "+strings.Join(names(cases(false), kase.String), ", "))
	f.Var(&o.systems, "systems", "measure these systems only: "+strings.Join(names(systems, system.String), ", "))
	f.Var(&o.repeat, "repeat", "how often each system runs each case (default 3, 1 with --quick)")
	f.BoolVar(&o.writes, "writes", false, "measure what policy "+policyName+" costs a write, and nothing else")
	return cmd
}

func (k kase) String() string   { return k.name }
func (s system) String() string { return s.name }

func names[T any](all []T, name func(T) string) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = name(v)
	}
	return out
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	began := time.Now()
	all := cases(o.Quick)
	kases := figure.Chosen(all, all, kase.String, o.cases)
	compared := figure.Chosen(systems, systems, system.String, o.systems)
	err := o.refused(kases, compared)
	if err == nil {
		err = o.Begin(benchName)
	}
	if err != nil {
		return err
	}
	b := &bench{options: o, Set: figure.NewSet(benchName), progress: progress}
	if o.writes {
		err := b.policyCost(ctx)
		return figure.Result{
			Common: &o.Common,
			Rows:   b.Figures(),
			Goals:  writeGoals,
			Began:  began,
			Limit:  timeLimit,
			Broken: err,
		}.Conclude(out, progress)
	}
	for _, k := range kases {
		b.say("%s: %s", k.name, k.what)
		err = errors.Join(err, b.run(ctx, k, compared))
		if ctx.Err() != nil {
			break
		}
	}
	return figure.Result{Common: &o.Common, Rows: b.lines(), Goals: goals, Began: began, Limit: timeLimit, Broken: err}.Conclude(out, progress)
}

// refused returns an error for an option without effect.
func (o options) refused(kases []kase, compared []system) error {
	if o.writes && (o.cases.Given() || o.systems.Given() || o.repeat > 0) {
		return errors.New("--writes: --cases, --systems and --repeat have no effect with it: leave them out")
	}
	for _, k := range kases {
		if o.cases.Given() && !slices.ContainsFunc(compared, k.asks) {
			why := cmp.Or(k.cannot[compared[0].name], "the case does not measure it")
			return fmt.Errorf("--systems: none of them can be asked for case %s, %s: %s: name another, or leave the case out", k.name, compared[0].name, why)
		}
	}
	return nil
}

// asks reports whether the case is measured for a system.
func (k kase) asks(s system) bool {
	measured := k.systems
	if measured == nil {
		measured = everyCase
	}
	return slices.Contains(measured, s.name) && k.cannot[s.name] == ""
}

// slow is the duration of a trial after which another project's system is not repeated in a case by default.
const slow = 2 * time.Minute

// repeats reports whether a system whose trial took so long is repeated. Holdfast and its limits always are.
func (o options) repeats(system string, took time.Duration) bool {
	return o.repeat > 0 || slices.Contains(forms, system) || took <= slow
}

// run measures one case: each system in turn, in another order each time. A failed system, and all systems of an interrupted case, have no
// figures.
func (b *bench) run(ctx context.Context, k kase, compared []system) (err error) {
	ended := map[string]bool{} // systems that failed or are not repeated
	for _, s := range compared {
		if k.cannot[s.name] != "" {
			b.Add(k.name, s.name, "can", "bool", 0)
			b.say("  %-12s  cannot: %s", s.name, k.cannot[s.name])
		}
	}
	for round := range figure.Repeats(b.repeat, b.Quick) {
		for _, s := range rotated(compared, round) {
			if !k.asks(s) || ended[s.name] {
				continue
			}
			began := time.Now()
			t := &trial{k: k, sys: s, source: b.Root()}
			out, failed := t.run(ctx)
			if ctx.Err() != nil {
				b.say("  broken off: no figures of %s", k.name)
				b.Forget(k.name)
				return ctx.Err()
			}
			if failed != nil {
				b.say("  %s: %v", s.name, failed)
				b.Forget(k.name, s.name)
				ended[s.name] = true
				err = errors.Join(err, fmt.Errorf("%s, %s: no figures", k.name, s.name))
				continue
			}
			var text strings.Builder
			for _, one := range out {
				b.Add(k.name, s.name, one.metric, one.unit, one.value)
				fmt.Fprintf(&text, "  %s %.4g", one.metric, one.value)
			}
			b.say("  %-12s%s", s.name, text.String())
			if took := time.Since(began); !b.repeats(s.name, took) {
				b.say("  %s: the trial took %s; it is not repeated", s.name, took.Round(time.Second))
				ended[s.name] = true
			}
		}
	}
	return err
}

// rotated begins with another element each round, so that no system is always first or always after the same one.
func rotated[T any](all []T, round int) []T {
	n := round % max(1, len(all))
	return slices.Concat(all[n:], all[:n])
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }
