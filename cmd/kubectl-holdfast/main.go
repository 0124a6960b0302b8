// Command kubectl-holdfast is a kubectl plugin. The plugin shows what happens to a job that uses Holdfast, and why,
// from objects at the API server and files in storage.
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

// version is set at link time.
var version = "dev"

func main() {
	if err := command(genericclioptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}).Execute(); err != nil {
		os.Exit(report(os.Stderr, err))
	}
}

// exitError ends the command with an exit code; without err everything was printed already.
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

// report prints an error and returns its exit code.
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
		evictCommand(flags, streams),
		checkCommand(flags, streams),
		previewCommand(flags, streams),
		fabricCommand(flags, streams),
		ckptCommand(flags, streams),
		doctorCommand(flags, streams),
		reportCommand(flags, streams),
		versionCommand(flags, streams),
	)
	return root
}
