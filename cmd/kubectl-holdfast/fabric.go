package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/fabric"
)

func fabricCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	level, most := "", 3
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "show how fragmented the fabric is, level by level, and which moves would free a domain",
		Example: `  kubectl holdfast fabric
  kubectl holdfast fabric --level nvlink --most 10`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("fabric takes no names (%s): it shows all levels, with --level one", strings.Join(args, " "))
			}
			return nil
		},
	}
	out := outputFlag(cmd, "text", "wide")
	cmd.Flags().StringVar(&level, "level", level, "show only this level, such as rack")
	cmd.Flags().IntVar(&most, "most", most, fmt.Sprintf("look for moves for so many domains of each level, 0 to %d", v1alpha1.MaxFabricMoves))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if most < 0 || most > v1alpha1.MaxFabricMoves {
			return fmt.Errorf("--most %d: use 0 to %d", most, v1alpha1.MaxFabricMoves)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout+schedulerTimeout)
		defer cancel()
		_, cfg, _, err := connect(flags, nil)
		if err != nil {
			return err
		}
		answer, unasked, err := askFabric(ctx, cfg, level, most)
		switch {
		case err != nil:
			return err
		case unasked != "":
			return errors.New(unasked)
		}
		return out.print(streams.Out, answer, func(format string) string { return fabric.Text(answer, format == "wide") })
	}
	return cmd
}
