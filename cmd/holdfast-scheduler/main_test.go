package main

import (
	"bytes"
	"fmt"
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

// Every flag of kube-scheduler is there, and ours.
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
		t.Error("arguments that mean nothing are taken")
	}
}

// A record without nodes answers that nothing fits; one that says otherwise is another answer.
func TestReplay(t *testing.T) {
	const record = `{"version":2,"at":"2026-01-02T03:04:05Z","name":"ns/g","nodes":[],"gang":{"size":1,"members":[{"Slot":0,"Name":"g-0"}],"roles":[{}]},"answer":%s}`
	var out bytes.Buffer
	err := again(&out, strings.NewReader(fmt.Sprintf(record, `{"placed":true}`)))
	if err == nil || !strings.Contains(err.Error(), "another one") || !strings.Contains(out.String(), "gang ns/g, 1 members, 0 nodes, at 2026-01-02T03:04:05Z") {
		t.Errorf("%v: %s", err, out.String())
	}
	_, said, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
	reason, message, _ := strings.Cut(said, ": ")
	if err := again(&out, strings.NewReader(fmt.Sprintf(record, fmt.Sprintf(`{"placed":false,"reason":%q,"message":%q,"wanted":1}`, reason, message)))); err != nil {
		t.Error(err)
	}
}
