package figure

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

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// Main runs a benchmark's command until it ends or is interrupted. A failure is printed, and ends the process with code 1.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := Execute(ctx, cmd); err != nil {
		fmt.Fprintln(os.Stderr, cmd.Name()+":", err)
		os.Exit(1)
	}
}

// Execute runs a benchmark's command, which has flags and no arguments.
func Execute(ctx context.Context, cmd *cobra.Command) error {
	cmd.Args, cmd.SilenceUsage, cmd.SilenceErrors = cobra.NoArgs, true, true
	return cmd.ExecuteContext(ctx)
}

// Result is the result of a run.
type Result struct {
	*Common
	// Rows are the rows to write, with those derived from others.
	Rows  []Figure
	Goals []Goal
	Began time.Time
	// Limit bounds the whole run; 0: no limit.
	Limit time.Duration
	// Broken is what failed; a failed case has no rows.
	Broken error
}

// Conclude writes rows as lines to out, writes a table with the goals to progress, and records the run. A missed goal is an error.
func (r Result) Conclude(out, progress io.Writer) error {
	v, took := judge(r.Rows, r.Goals, r.Quick), time.Since(r.Began)
	if r.Limit > 0 && took > r.Limit {
		v.Missed = append(v.Missed, fmt.Sprintf("the run took %.0f s, the goal is at most %.0f", took.Seconds(), r.Limit.Seconds()))
	}
	err := errors.Join(r.Broken, WriteLines(out, r.Rows), table(progress, r.Rows, v), r.keep(r.Rows, took.Seconds(), v.Missed, r.Broken))
	fmt.Fprintf(progress, "  the run took %.0f s\n", took.Seconds())
	if len(v.Missed) > 0 {
		err = errors.Join(err, errors.New(strings.Join(v.Missed, "\n")))
	}
	return err
}

func table(w io.Writer, rows []Figure, v Verdicts) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "\n  case\tsystem\tmetric\tmedian\tunit\tsamples\trange")
	for _, f := range rows {
		all := append(slices.Clip(f.Samples), f.Value)
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%.4g\t%s\t%d\t%.4g–%.4g\n", f.Case, f.System, f.Metric, f.Value, f.Unit, f.N, slices.Min(all), slices.Max(all))
	}
	for _, g := range []struct {
		word  string
		texts []string
	}{{"reached", v.Reached}, {"MISSED", v.Missed}, {"not measured", v.Unmeasured}} {
		for _, text := range g.texts {
			fmt.Fprintf(tw, "  %-8s %s\n", g.word, text)
		}
	}
	return tw.Flush()
}

// Each calls do for all, so many at a time, and returns the first error.
func Each[T any](parallel int, all []T, do func(T) error) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, v := range all {
		g.Go(func() error { return do(v) })
	}
	return g.Wait()
}

// Say returns a function that writes lines to progress, each with the seconds since began.
func Say(progress io.Writer, began time.Time) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(progress, "[%4.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}
