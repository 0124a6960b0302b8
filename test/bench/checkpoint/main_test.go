//go:build linux

package main

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// Every option acts or is refused, before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--quick", "--check"}, Want: "--check: figures of a --quick run are compared with nothing"},
		{Args: []string{"--systems=nvrx"}, Want: `there is no "nvrx"`},
		{Args: []string{"--dlrover-python=/nowhere/python3"}, Want: "dlrover: stat /nowhere/python3: no such file or directory: run hack/dlrover.sh"},
		{Args: []string{"--quick", "--systems=dlrover", "--dlrover-python=/nowhere/python3"}, Want: "run hack/dlrover.sh"},
		{Args: []string{"--cases=2GiB"}, Want: `there is no "2GiB"`},
		{Args: []string{"--turns=0"}, Want: "at least 1"},
		{Args: []string{"--disk="}, Want: "give a path"},
		{Args: []string{"--check", "--source=" + t.TempDir()}, Want: "docs/benchmarks/checkpoint.jsonl"},
		{Args: []string{"1GiB"}, Want: `unknown command "1GiB"`},
	})
}

// A goal is missed where the ratio of medians is above its bound, in full runs only, and unmeasured where one side is missing.
func TestGoalsAreOfMedians(t *testing.T) {
	set := figure.NewSet(benchName)
	for _, g := range goals {
		set.Add("c", g.system, g.of, "s", 1, 1, 1)
	}
	for _, g := range goals {
		if g.metric != "blocking_stall" { // which steady saves have already
			set.Add("c", holdfast, g.metric, "s", g.most+1)
		}
	}
	set.Add("c", holdfast, "kill_to_step", "s", 4)
	set.Add(little.name, holdfast, "kill_to_step", "s", 2)
	v := verdicts(set, false)
	if text := strings.Join(v.Reached, "; "); len(v.Missed) != len(goals)-1+1 || len(v.Reached) != 1 || !strings.Contains(text, "blocking_stall_vs_memcpy is 1,") {
		t.Errorf("%+v", v)
	}
	if v := verdicts(set, true); len(v.Unmeasured) != len(goals)+1 {
		t.Errorf("a quick run says %+v", v)
	}
	set.Forget("c", memcpy)
	if v := verdicts(set, false); len(v.Unmeasured) != 2 {
		t.Errorf("without memcpy: %+v", v)
	}
	ratios := 0
	for _, f := range rows(set) {
		if f.Unit == figure.Times {
			ratios++
		}
	}
	if ratios != 5 {
		t.Errorf("%d ratios without memcpy, want 5", ratios)
	}
}
