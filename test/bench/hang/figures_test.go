package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/lives"
)

func TestRanksThatTextsName(t *testing.T) {
	for text, want := range map[string][]int{
		"no step for 26s: Hang, stands still inside torch or a device: rank 2 on node-0: a call that takes no signal; 3 ranks: all_reduce 12": {2},
		"Desync: rank 2: broadcast; ranks 0, 1 and 3: all_reduce":                                                                             {0, 1, 2, 3},
		"ranks 0-1 stand still":                         {0, 1},
		"failed (exitcode: 1) local_rank: 3 (pid: 175)": nil, // blame has its own pattern
		"3 ranks: all_reduce":                           nil,
	} {
		if got := ranksIn(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestLinesOfLaunchers: the lines are those that the launchers print.
func TestLinesOfLaunchers(t *testing.T) {
	lines := map[string][]string{
		"torchrun": {
			"[rank1]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete",
			"W1129 08:47:47 16837 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 17531 closing signal SIGTERM",
			"E1129 08:47:47 16837 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 3 (pid: 17534) of binary: python3",
		},
		"ft_launcher": {
			"[2026-11-29 08:48:01,282] [WARNING] [RankMonServer17626@vm:3] Did not get subsequent heartbeat. Waited 30.00 seconds.",
			"[2026-11-29 08:48:01,464] [INFO] [ft_launcher16847@vm] [default] Worker group UNHEALTHY. 3/3 attempts left; will restart worker group",
		},
	}
	for i := range launchers {
		l := &launchers[i]
		said, ok := lines[l.name]
		if !ok {
			continue
		}
		w := &watched{Record: lives.New(), launcher: l}
		w.line(said[0], time.Unix(1, 0))
		if !w.reported.IsZero() {
			t.Errorf("%s: a line before the hang counts", l.name)
		}
		w.from = time.Unix(2, 0)
		for n, text := range said {
			w.line(text, time.Unix(int64(3+n), 0))
		}
		if !w.reported.Equal(time.Unix(3, 0)) || !w.ordered.Equal(time.Unix(4, 0)) || !slices.Equal(w.names, []int{3}) {
			t.Errorf("%s: reported %s, ordered %s, names %v", l.name, w.reported, w.ordered, w.names)
		}
	}
}

// missed is the message of a run with missed goals.
func missed(r *results) string {
	result := figure.Result{Common: &figure.Common{}, Rows: r.figures(), Goals: r.goals(), Began: time.Now()}
	if err := result.Conclude(io.Discard, &bytes.Buffer{}); err != nil {
		return err.Error()
	}
	return ""
}

func TestGoals(t *testing.T) {
	good := outcome{reported: 27, names: []int{odd}, ordered: 27, stepped: 1.5, again: 4}
	for what, change := range map[string]func(*outcome){
		"":                               func(*outcome) {},
		toReport:                         func(o *outcome) { o.reported = 61 },
		orderToStep:                      func(o *outcome) { o.stepped = 2.1 },
		inTime + " of holdfast is 0.5, ": func(o *outcome) { o.names = []int{0} },
		inTime + " of holdfast is 0.5":   func(o *outcome) { o.reported = 36 },
	} {
		r := newResults()
		other := good
		change(&other)
		r.note(faultInside, systemHoldfast, good, 150)
		r.note(faultSleeps, systemHoldfast, other, 150)
		r.note(faultSleeps, "torchrun", outcome{}, 150)
		if got := missed(r); (got == "") != (what == "") || !strings.Contains(got, what) {
			t.Errorf("%q: missed %q", what, got)
		}
	}
}

// TestNoReport: a hang without a report has the time waited, and no time of a report.
func TestNoReport(t *testing.T) {
	r := newResults()
	r.note(faultSleeps, "dlrover-run", outcome{}, 150)
	rows := r.figures()
	at := func(metric string) bool {
		return figure.Has(rows, figure.Key{Case: faultSleeps, System: "dlrover-run", Metric: metric})
	}
	if !at(noReport) || !at(noEnd) || at(toReport) || at(named) {
		t.Errorf("rows %v", rows)
	}
}
