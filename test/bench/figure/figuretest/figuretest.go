// Package figuretest tests what the commands of all benchmarks have in common.
package figuretest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/bench/figure"
)

// Option is a command line and words of its refusal.
type Option struct {
	Args []string
	Want string
}

// Refused checks that a command refuses each of the options, before anything is started and without a line.
func Refused(t *testing.T, command func(out, progress io.Writer) *cobra.Command, options []Option) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range options {
		var out bytes.Buffer
		cmd := command(&out, io.Discard)
		cmd.SetArgs(o.Args)
		if err := figure.Execute(ctx, cmd); err == nil || !strings.Contains(err.Error(), o.Want) || out.Len() > 0 {
			t.Errorf("%q: %v, want %q; lines: %s", o.Args, err, o.Want, &out)
		}
	}
}
