//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOwnFlagsComeFirst(t *testing.T) {
	for _, c := range []struct{ args, own, torchrun string }{
		{"train.py", "", "train.py"},
		{"--nproc-per-node=2 train.py --hang off", "", "--nproc-per-node=2 train.py --hang off"},
		{"--hang off --nproc-per-node 2 train.py", "--hang off", "--nproc-per-node 2 train.py"},
		{"--standbys=false --state-size=1Gi --standalone train.py -h", "--standbys=false --state-size=1Gi", "--standalone train.py -h"},
		{"--standbys train.py", "--standbys", "train.py"},
		{"-h", "-h", ""},
		{"--hang", "--hang", ""},
		{"-m torch_module", "", "-m torch_module"},
		{"", "", ""},
	} {
		own, torchrun := split(runCommand().Flags(), strings.Fields(c.args))
		if !slices.Equal(own, strings.Fields(c.own)) || !slices.Equal(torchrun, strings.Fields(c.torchrun)) {
			t.Errorf("%q: own %q, torchrun's %q", c.args, own, torchrun)
		}
	}
}

func TestWrongInput(t *testing.T) {
	for args, want := range map[string]string{
		"run":                           "no script",
		"run --state-size=0 train.py":   `such as "1Gi"`,
		"run --state-size=9Ti train.py": `such as "1Gi"`,
		"run --hang=kill train.py":      "write act, report or off",
		"run --standbys=2 train.py":     `"--standbys" flag: write true or false: see holdfast run --help`,
		"walk":                          "unknown command",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestCheck: several machines are refused however they are asked for, and no message speaks of annotations.
func TestCheck(t *testing.T) {
	const machines = ": holdfast run trains on one machine; leave it out, or run a job with Holdfast on Kubernetes, which trains on several"
	for _, c := range []struct{ line, env, want string }{
		{"--nproc-per-node=2 train.py --nnodes=2", "", ""},
		{"--nnodes=1 --node-rank=0 train.py", "", ""},
		{"--standalone --nnodes=2 train.py", "", ""},
		{"--nnodes 2 train.py", "", "--nnodes=2" + machines},
		{"--nnodes=1:4 train.py", "", "--nnodes=1:4" + machines},
		{"train.py", "PET_NNODES=2", "PET_NNODES=2" + machines},
		{"--bogus=1 train.py", "", "--bogus: is not a flag of torchrun that holdfast knows; leave it out, or run the script with torchrun itself"},
		{"--nproc-per-node=2", "", "training_script: is missing; name the script (or with -m the module) to run"},
	} {
		got := ""
		if err := check(strings.Fields(c.line), []string{c.env}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %s: %q, want %q", c.env, c.line, got, c.want)
		}
	}
}
