//go:build linux

package main

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// TestRefusedOptions: an option without effect is refused before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--systems=nvrx"}, Want: `there is no "nvrx"`},
		{Args: []string{"--cases=2GiB"}, Want: `there is no "2GiB"`},
		{Args: []string{"--turns=0"}, Want: "at least 1"},
		{Args: []string{"--disk="}, Want: "give a path"},
		{Args: []string{"1GiB"}, Want: `unknown command "1GiB"`},
	})
}

// TestGoalsHaveRows: each case has the goals of its kind, and rows for them; without a value on one side there is no ratio.
func TestGoalsHaveRows(t *testing.T) {
	set := figure.NewSet(benchName)
	for _, g := range goals {
		set.Add("c", g.system, g.of, "s", 1, 1, 1)
		set.Add("c", cmp.Or(g.way, holdfast), g.metric, "s", g.most+1)
	}
	set.Add(little.name, holdfast, "kill_to_step", "s", 2)
	if got := goalsFor(set); len(got) != len(goals) {
		t.Errorf("%d goals of one case: %v", len(got), got)
	}
	for _, g := range goalsFor(set) {
		if !figure.Has(rows(set), g.Key) {
			t.Errorf("no row %v", g.Key)
		}
	}
	seen := map[figure.Key]bool{}
	for _, f := range rows(set) {
		key := figure.Key{Case: f.Case, System: f.System, Metric: f.Metric}
		if seen[key] {
			t.Errorf("two rows %v", key)
		}
		seen[key] = true
	}
	set.Forget("c", memcpy)
	for _, name := range []string{"blocking_stall_vs_memcpy", "restore_vs_memcpy"} {
		if figure.Has(rows(set), figure.Key{Case: "c", System: holdfast, Metric: name}) {
			t.Errorf("%s without memcpy", name)
		}
	}
}

// TestWithoutDLRover: if it is not installed, there are no goals about it.
func TestWithoutDLRover(t *testing.T) {
	set := figure.NewSet(benchName)
	set.Add("c", dlrover, notInstalled, "bool", 1)
	for _, g := range goalsFor(set) {
		if strings.Contains(g.Key.Metric, dlrover) {
			t.Errorf("a goal %v", g)
		}
	}
	if folder := packagesOf(t.TempDir()); folder != "" {
		t.Errorf("an empty folder has packages in %q", folder)
	}
}

// TestStandbyThatDoesNotStart: nothing is left of it, neither a socket nor a process.
func TestStandbyThatDoesNotStart(t *testing.T) {
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	_ = exec.Command("true").Run() // the runtime opens files of its own with the first process
	before := open()
	for _, python := range []string{"/bin/false", "/bin/yes", "/does/not/exist"} {
		h := &held{}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := h.start(ctx, python, nil, nil, holdfast); err == nil {
			t.Errorf("%s is a standby", python)
		}
		h.end()
		cancel()
		if h.cmd.Process != nil && h.cmd.ProcessState == nil {
			t.Errorf("%s has not ended", python)
		}
	}
	if after := open(); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}
