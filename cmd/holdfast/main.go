//go:build linux

// Command holdfast runs a training script on one machine without Kubernetes, in place of torchrun. The agent that runs in
// pods restarts ranks that die, in interpreters started in advance, and keeps their state in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// version is set at link time.
var version = "dev"

func main() {
	err := command().ExecuteContext(context.Background())
	var ended exitCode
	switch {
	case err == nil:
	case errors.As(err, &ended):
		os.Exit(int(ended))
	default:
		fmt.Fprintln(os.Stderr, "holdfast:", err)
		os.Exit(2)
	}
}

// exitCode is the exit code of a run that has ended; it is not zero.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "holdfast", Short: "Run a training script whose ranks are restarted when they die", Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand())
	return root
}
