package main

import (
	"testing"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// Every option acts or is refused, before anything is asked.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--quick", "--check"}, Want: "--check: figures of a --quick run are compared with nothing"},
		{Args: []string{"--source=."}, Want: "--source: nothing is read from it without --check or --record"},
		{Args: []string{"--check", "--source=" + t.TempDir()}, Want: "docs/benchmarks/plan.jsonl"},
		{Args: []string{"5000"}, Want: `unknown command "5000"`},
	})
}

func TestScanCountsNodesWithRoom(t *testing.T) {
	if got := scan(cluster(10, 3)); got != 6 { // 0, 3, 6 and 9 are taken
		t.Errorf("%d of 10 nodes have room, want 6", got)
	}
}

// A goal's name is that of a question.
func TestGoalsAreOfQuestions(t *testing.T) {
	asked := map[string]bool{}
	for _, q := range questions(cluster(5000, 0), cluster(5000, 0)) {
		asked[q.name] = true
	}
	set := figure.NewSet(benchName)
	for kase := range goals {
		if !asked[kase] {
			t.Errorf("nobody asks %q", kase)
		}
		set.Add(kase, systemHoldfast, warm, "ms", goals[kase]+1)
		set.Add(kase, systemScan, warm, "ms", 1)
	}
	if v := verdicts(set, false); len(v.Missed) != len(goals) {
		t.Errorf("%+v", v)
	}
	if v := verdicts(set, true); len(v.Unmeasured) != len(goals) {
		t.Errorf("a quick run says %+v", v)
	}
	if got := rows(set); len(got) != 3*len(goals) {
		t.Errorf("%d rows", len(got))
	}
}
