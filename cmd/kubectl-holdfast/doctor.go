package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
)

// tryFor is how long the Jobs of --try may take by default: nodes may have to pull an image.
const tryFor = 90 * time.Second

func doctorCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	try, leaving, wait := false, false, tryFor
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "check whether a cluster is ready for Holdfast, whether Holdfast works there, and what its removal would leave",
		Long: `Check whether a cluster is ready for Holdfast, whether Holdfast works there for jobs of the namespace (-n), and, with
--before-uninstall, what its removal would leave. The command reads objects with your rights and sends a dry run of a
Job. A fact that you may not read gives result Unknown.

Exit code 0: no check failed and each has an answer; 1: a check failed; 3: none failed, and some have no answer.`,
		Example: `  kubectl holdfast doctor -n team-a
  kubectl holdfast doctor -n team-a --try
  kubectl holdfast doctor --before-uninstall`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("doctor takes no names (%s): it checks the cluster, and the namespace that -n names", strings.Join(args, " "))
			}
			return nil
		},
	}
	out := outputFlag(cmd, "text", "wide")
	cmd.Flags().BoolVar(&try, "try", try, "create two Jobs of one small pod each in the namespace, one with hostNetwork, see whether they start, and delete them")
	cmd.Flags().BoolVar(&leaving, "before-uninstall", leaving, "check what Holdfast's removal would leave")
	cmd.Flags().DurationVar(&wait, "timeout", wait, "how long --try waits for its Jobs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch err := out.check(); {
		case err != nil:
			return err
		case try && leaving:
			return fmt.Errorf("--try with --before-uninstall: leave one of them out")
		case wait < time.Second:
			return fmt.Errorf("--timeout %s: give a time from 1s", wait)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout+wait)
		defer cancel()
		c, cfg, namespace, err := connect(flags, &warned{})
		if err != nil {
			return err
		}
		r := &factReader{Client: c, cfg: cfg, namespace: namespace}
		facts, err := r.facts(ctx, leaving)
		if err != nil {
			return err
		}
		if try && facts.Serves {
			facts.Trials = r.trials(ctx, facts.DryRun, wait)
		}
		report := doctor.Of(facts)
		if err := out.print(streams.Out, report, func(format string) string { return report.Text(format == "wide") }); err != nil {
			return err
		}
		if code := report.ExitCode(); code != 0 {
			return &exitError{code: code}
		}
		return nil
	}
	return cmd
}
