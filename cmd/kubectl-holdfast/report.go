package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

func reportCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "report (KIND/NAME | gang/NAME)",
		Short: "write a page about a job: goodput, a timeline, each recovery with its phases and cause; one HTML file that loads nothing",
		Example: `  kubectl holdfast report job/train -n team-a > train.html
  kubectl holdfast report gang/train > train.html`,
		Args:              oneThing("report", "report on"),
		ValidArgsFunction: completeJobs(flags),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			c, _, namespace, err := connect(flags, nil)
			if err != nil {
				return err
			}
			g, err := find(ctx, c, namespace, args[0])
			if err != nil {
				return err
			}
			e, err := explanationOf(ctx, c, g)
			if err != nil {
				return err
			}
			return e.WritePage(streams.Out)
		},
	}
}
