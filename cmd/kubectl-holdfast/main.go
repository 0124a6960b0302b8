// Command kubectl-holdfast is a kubectl plugin that explains, from live objects, what happens to a job of Holdfast's,
// and why.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"holdfast.dev/holdfast/elastic/cause"
)

// version is set when the binary is linked.
var version = "dev"

func main() {
	if err := command(genericclioptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}).Execute(); err != nil {
		os.Exit(report(os.Stderr, err))
	}
}

// exitError ends the command with a code of its own; without err all was said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// report tells people of an error and returns the exit code for it.
func report(w io.Writer, err error) int {
	exit := &exitError{code: 1, err: err}
	errors.As(err, &exit)
	if exit.err != nil {
		fmt.Fprintln(w, "error:", cause.Printable(exit.err.Error()))
	}
	return exit.code
}

func command(streams genericclioptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:           "kubectl-holdfast",
		Short:         "what happens to a job that Holdfast keeps alive, and why",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(
		explainCommand(flags, streams),
		nodesCommand(flags, streams),
		previewCommand(flags, streams),
		fabricCommand(flags, streams),
		ckptCommand(flags, streams),
	)
	return root
}
