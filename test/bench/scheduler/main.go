// Command bench-scheduler measures how long it takes until large gangs are placed. It promises that all systems are measured
// in the same run, on the same control plane, with the same pods, nodes and client limits; that after each trial every pod is
// looked at; and that a missed goal is shown, never hidden.
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

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/test/bench/figure"
)

// timeLimit is what the whole run may take.
const timeLimit = 25 * time.Minute

type options struct {
	quick, check   bool
	source         string
	cases, systems []string
	repeat         int
	profile        string
}

// bench is one run.
type bench struct {
	options
	*figure.Set
	progress io.Writer
}

func main() {
	klog.SetLogger(klog.NewKlogr().V(9)) // a watch that is stopped is no news
	var o options
	cmd := &cobra.Command{
		Use:   "bench-scheduler",
		Short: "Measure how soon gangs are placed",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, os.Stdout, os.Stderr) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "few nodes and pods: shows that everything works, not how fast it is")
	f.BoolVar(&o.check, "check", false, "fail when a goal is missed")
	f.StringVar(&o.source, "source", ".", "root of the source tree, with its binaries built")
	f.StringSliceVar(&o.cases, "cases", nil, "measure these cases only: "+strings.Join(names(cases(false), kase.String), ", "))
	f.StringSliceVar(&o.systems, "systems", nil, "measure these systems only: "+strings.Join(names(systems, system.String), ", "))
	f.IntVar(&o.repeat, "repeat", 0, "how often each system runs each case (default 3, 1 with --quick)")
	f.StringVar(&o.profile, "profile", "", "a file for a processor profile of the last scheduler that was measured; it disturbs the figures")
	figure.Main(cmd)
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
	var err error
	if o.repeat, err = figure.Repeats(o.repeat, o.quick); err != nil {
		return err
	}
	all := cases(o.quick)
	kases, err := figure.Chosen("cases", all, all, kase.String, o.cases)
	if err != nil {
		return err
	}
	compared, err := figure.Chosen("systems", systems, systems, system.String, o.systems)
	if err != nil {
		return err
	}
	b := &bench{options: o, Set: figure.NewSet("scheduler"), progress: progress}
	for _, k := range kases {
		b.say("%s: %s", k.name, k.what)
		err = errors.Join(err, b.run(ctx, k, compared))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(err, b.Conclude(out, progress, figure.Result{Rows: b.lines(), Verdicts: b.verdicts(), Began: began, Limit: timeLimit, Check: o.check}))
}

// run measures one case: each system in turn, in another order each time.
func (b *bench) run(ctx context.Context, k kase, compared []system) (err error) {
	for round := range b.repeat {
		for _, s := range rotated(compared, round) {
			if (k.systems != nil && !slices.Contains(k.systems, s.name)) || (k.slow && s.slow && round > 0) {
				continue
			}
			t := &trial{k: k, sys: s, source: b.source, profile: b.profile}
			out, failed := t.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if failed != nil {
				b.say("  %s: %v", s.name, failed)
				err = errors.Join(err, fmt.Errorf("%s, %s: no figure", k.name, s.name))
				continue
			}
			var text strings.Builder
			for _, one := range out {
				b.Add(k.name, s.name, one.metric, one.unit, one.value)
				fmt.Fprintf(&text, "  %s %.4g", one.metric, one.value)
			}
			b.say("  %-12s%s", s.name, text.String())
		}
	}
	return err
}

// rotated begins with another one each round, so that none is always first or always after the same.
func rotated[T any](all []T, round int) []T {
	n := round % max(1, len(all))
	return slices.Concat(all[n:], all[:n])
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }
