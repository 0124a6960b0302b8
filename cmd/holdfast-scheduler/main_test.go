package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
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

// TestFlags: the command has every flag of kube-scheduler, and Holdfast's own.
func TestFlags(t *testing.T) {
	cmd := command()
	app.NewSchedulerCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Lookup(f.Name) == nil {
			t.Errorf("kube-scheduler's flag --%s is gone", f.Name)
		}
	})
	if f := cmd.Flags().Lookup("preview-bind-address"); f == nil || f.DefValue != ":10260" {
		t.Errorf("preview-bind-address is %+v", f)
	}
	if err := cmd.Flags().Parse([]string{"--config=/x.yaml", "--preview-bind-address=", "--v=3"}); err != nil {
		t.Error(err)
	}
	if err := cmd.Args(cmd, []string{"more"}); err == nil {
		t.Error("arguments without a meaning are accepted")
	}
}
