//go:build linux

package main

import (
	"testing"

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
		set.Add("c", holdfast, g.metric, "s", g.most+1)
	}
	set.Add("c", holdfast, "kill_to_step", "s", 4)
	set.Add(little.name, holdfast, "kill_to_step", "s", 2)
	if got := goalsFor(set); len(got) != len(goals)+1 {
		t.Errorf("%d goals of one case: %v", len(got), got)
	}
	for _, g := range goalsFor(set) {
		if !figure.Has(rows(set), g.Key) {
			t.Errorf("no row %v", g.Key)
		}
	}
	set.Forget("c", memcpy)
	for _, name := range []string{"blocking_stall_vs_memcpy", "restore_vs_memcpy"} {
		if figure.Has(rows(set), key("c", name)) {
			t.Errorf("%s without memcpy", name)
		}
	}
}
