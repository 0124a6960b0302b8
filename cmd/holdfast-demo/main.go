// Command holdfast-demo starts a one-machine cluster, installs Holdfast by its manifests, plays the story of one job and many failures, and shows a
// summary and a page. It cleans up after itself; if it was killed, its next run removes what was left.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/story"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\nholdfast-demo:", err)
		os.Exit(1)
	}
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
			if o.run != "holdfast" && o.run != "default-scheduler" {
				return fmt.Errorf("--run %q: use holdfast or default-scheduler", o.run)
			}
			return demo(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.keep, "keep", false, "leave the cluster up and print how to reach it")
	f.StringVar(&o.run, "run", "holdfast", "holdfast: the story; default-scheduler: the same job without Holdfast, half placed")
	f.StringVar(&o.page, "page", "bin/demo.html", "page to write")
	f.StringVar(&o.source, "source", ".", "root of the source tree")
	return cmd
}

func demo(ctx context.Context, o options) (err error) {
	source, err := filepath.Abs(o.source)
	if err != nil {
		return err
	}
	stage, err := story.SetStage(ctx, story.StageOptions{Name: "demo", Nodes: 3, Source: source, Keep: o.keep, Out: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		if o.keep {
			fmt.Printf("\nThe cluster is still up. To reach it:\n%sTo remove it:\n%s down --name demo\n", stage.Env, filepath.Join(source, "bin/holdfast-dev"))
		} else {
			stage.Say("taking the cluster down")
		}
		err = errors.Join(err, stage.Strike())
	}()
	if o.run == "default-scheduler" {
		return story.HalfPlaced(ctx, stage.World)
	}
	report, err := story.Play(ctx, stage.World)
	if report == nil {
		return err
	}
	return errors.Join(err, report.WriteSummary(os.Stdout), writePage(report, filepath.Join(source, o.page)))
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
