package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	cmd, out := command(), &bytes.Buffer{}
	cmd.SetOut(out)
	cmd.SetArgs([]string{"version"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "holdfast-scheduler dev (kube-scheduler v") {
		t.Errorf("version says %q", out)
	}
}
