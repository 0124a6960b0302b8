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
)

// Main runs a benchmark's command until it ends or is interrupted. A failure is told, and ends the process with code 1.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := Execute(ctx, cmd); err != nil {
		fmt.Fprintln(os.Stderr, cmd.Name()+":", err)
		os.Exit(1)
	}
}

// Execute runs a benchmark's command, which takes flags only.
func Execute(ctx context.Context, cmd *cobra.Command) error {
	cmd.Args, cmd.SilenceUsage, cmd.SilenceErrors = cobra.NoArgs, true, true
	return cmd.ExecuteContext(ctx)
}

// Verdicts say of every goal what became of it. One that was not measured is no goal reached.
type Verdicts struct{ Missed, Reached, Unmeasured []string }

// Say adds what became of one goal.
func (v *Verdicts) Say(reached bool, text string) {
	if reached {
		v.Reached = append(v.Reached, text)
	} else {
		v.Missed = append(v.Missed, text)
	}
}

// Result is a run that is over.
type Result struct {
	*Common
	// Rows are what is written, those that are derived from others included.
	Rows []Figure
	Verdicts
	Began time.Time
	// Limit is what the whole run may take; 0: as long as it wants.
	Limit time.Duration
	// Broken is what failed; of that there are no rows.
	Broken error
}

// Conclude writes rows as lines to out and as a table, with the goals, to progress.
func (s *Set) Conclude(out, progress io.Writer, r Result) error {
	return r.End(out, progress, func(w io.Writer) error { return s.table(w, r) })
}

// End writes rows as lines to out and, by table, for people to progress. It keeps the run, and compares it with the one that was kept.
func (r Result) End(out, progress io.Writer, table func(io.Writer) error) error {
	err := errors.Join(r.Broken, WriteLines(out, r.Rows), table(progress))
	took, missed := time.Since(r.Began), r.Missed
	fmt.Fprintf(progress, "  the run took %.0f s\n", took.Seconds())
	if r.Limit > 0 && took > r.Limit {
		missed = append(slices.Clip(missed), fmt.Sprintf("the run took %.0f s, the goal is at most %.0f", took.Seconds(), r.Limit.Seconds()))
	}
	err = errors.Join(err, r.keep(r.Rows, took.Seconds(), missed, r.Broken))
	if !r.Check {
		return err
	}
	against := Compare(r.recorded.Rows, r.Rows)
	tw := tabwriter.NewWriter(progress, 0, 4, 2, ' ', 0)
	against.say(tw, fmt.Sprintf("Against the recorded run of commit %s", r.recorded.Commit))
	if missed = append(slices.Clip(missed), against.Missed...); len(missed) > 0 {
		err = errors.Join(err, errors.New(strings.Join(missed, "\n")))
	}
	return errors.Join(err, tw.Flush())
}

func (s *Set) table(w io.Writer, r Result) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "\n  case\tsystem\tmetric\tmedian\tunit\tsamples\trange")
	for _, f := range r.Rows {
		all := s.Samples(f.Case, f.System, f.Metric)
		if len(all) == 0 {
			all = []float64{f.Value} // derived
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%.4g\t%s\t%d\t%.4g–%.4g\n", f.Case, f.System, f.Metric, f.Value, f.Unit, f.N, slices.Min(all), slices.Max(all))
	}
	r.say(tw, "Goals")
	return tw.Flush()
}

// say tells people what became of each goal.
func (v Verdicts) say(w io.Writer, title string) {
	if len(v.Reached)+len(v.Missed)+len(v.Unmeasured) > 0 {
		fmt.Fprintln(w, "\n"+title)
	}
	for _, text := range v.Reached {
		fmt.Fprintf(w, "  reached  %s\n", text)
	}
	for _, text := range v.Missed {
		fmt.Fprintf(w, "  MISSED   %s\n", text)
	}
	for _, text := range v.Unmeasured {
		fmt.Fprintf(w, "  not measured  %s\n", text)
	}
}
