// Command holdfast-demo starts a one-machine cluster, installs Holdfast from its manifests, plays one job with many
// failures, and shows a summary and a page. The command removes the cluster when it ends. If the command is killed, its
// next run removes what is left.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/story"
)

func main() {
	err := command().ExecuteContext(interruptible())
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "\nholdfast-demo:", err)
	var by interrupted
	if errors.As(err, &by) {
		os.Exit(128 + int(by.Signal))
	}
	os.Exit(1)
}

// interrupted is the signal that ended a demo early.
type interrupted struct{ syscall.Signal }

func (i interrupted) Error() string {
	return fmt.Sprintf("ended early by a signal (%s); no page was written", i.Signal)
}

// interruptible ends with the first Ctrl-C or SIGTERM. Later ones have no effect: the demo always stops its processes in order.
func interruptible() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range signals {
			if ctx.Err() != nil {
				fmt.Fprintln(os.Stderr, "\nholdfast-demo: still ending what was started; it takes a few seconds")
			} else if s, ok := s.(syscall.Signal); ok {
				cancel(interrupted{s})
			}
		}
	}()
	return ctx
}

// early returns the signal that ended ctx instead of the errors that it caused; err if there was none.
func early(ctx context.Context, err error) error {
	var by interrupted
	if err != nil && errors.As(context.Cause(ctx), &by) {
		return by
	}
	return err
}

type options struct {
	keep   bool
	run    string
	page   string
	source string
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "holdfast-demo", Short: "Play one job's many failures on a one-machine cluster", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"holdfast", "fewer", "default-scheduler"}, o.run) {
				return fmt.Errorf("--run %q: use holdfast, fewer or default-scheduler", o.run)
			}
			return demo(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.keep, "keep", false, "leave the cluster up and print how to reach it")
	f.StringVar(&o.run, "run", "holdfast", "holdfast: the story; fewer: a job goes on with fewer pods while a node is off; default-scheduler: the same job without Holdfast, half placed")
	f.StringVar(&o.page, "page", "bin/demo.html", "page to write")
	f.StringVar(&o.source, "source", ".", "root of the source tree")
	return cmd
}

// cluster is the name of the demo's cluster.
const cluster = "demo"

// vacant refuses to remove a cluster in use. A cluster whose demo was killed ends by itself within seconds.
func vacant(ctx context.Context, source string) error {
	for range 50 {
		if !devcluster.Running("", cluster) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return fmt.Errorf("the cluster of another demo is up: end that demo with Ctrl-C or, if it was kept, remove it: %s down --name %s", filepath.Join(source, "bin/holdfast-dev"), cluster)
}

func demo(ctx context.Context, o options) (err error) {
	source, err := filepath.Abs(o.source)
	if err != nil {
		return err
	}
	if err := vacant(ctx, source); err != nil {
		return early(ctx, err)
	}
	up, err := harness.Up(ctx, source, devcluster.Options{Name: cluster, Nodes: 3, Replace: true, Keep: o.keep, Out: os.Stderr})
	if err != nil {
		return early(ctx, err)
	}
	defer func() {
		if o.keep {
			fmt.Printf("\nThe cluster is still up. To reach it:\n%sTo remove it:\n%s down --name %s\n", up.Spec().Env(), filepath.Join(source, "bin/holdfast-dev"), cluster)
		} else {
			up.Say("taking the cluster down")
		}
		err = errors.Join(err, up.Down())
	}()
	w := &story.World{Cluster: up}
	switch o.run {
	case "default-scheduler":
		return early(ctx, story.HalfPlaced(ctx, w))
	case "fewer":
		return early(ctx, story.GoesOn(ctx, w))
	}
	report, err := story.Play(ctx, w)
	if err != nil {
		return early(ctx, err) // an interrupted story has no page
	}
	return errors.Join(report.WriteSummary(os.Stdout), writePage(report, filepath.Join(source, o.page)))
}

func writePage(r *story.Report, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	defer f.Close()
	if err := r.WritePage(f); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	fmt.Printf("\nThe page with both loss curves and a timeline per recovery: %s\n", path)
	return f.Close()
}
