package main

import (
	"io"
	"strings"
	"testing"

	"holdfast.dev/holdfast/test/bench/figure"
)

// TestRefusesRepeatOfOthers: the other launchers play once, so that the option would have no effect.
func TestRefusesRepeatOfOthers(t *testing.T) {
	cmd := command(io.Discard, io.Discard)
	cmd.SetArgs([]string{"--systems=torchrun", "--repeat=2"})
	if err := figure.Execute(t.Context(), cmd); err == nil || !strings.Contains(err.Error(), "--repeat") {
		t.Errorf("got %v", err)
	}
}
