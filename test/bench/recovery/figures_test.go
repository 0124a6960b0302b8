package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
)

func sample() *results {
	r := newResults()
	r.Add("1x4", systemTorchrun, killToStep, "s", 9, 8, 30)
	r.Add("1x4", systemCold, killToStep, "s", 9, 10)
	r.Add("1x4", systemHoldfast, killToStep, "s", 0.2)
	r.Add("1x4", systemHoldfast, standbyReady, "s", 12)
	r.Add("1x4", systemHoldfast, standbyFirst, "s", 19)
	r.Add("1x4", systemAsComes, recoveredAny, "bool", 0)
	r.Add("1x4", systemAsComes, "waited_s", "s", 25)
	r.Add("2x2", systemHoldfast, killToStep, "s", 0.3)
	return r
}

func TestFiguresAreMediansAndRatios(t *testing.T) {
	var out bytes.Buffer
	if err := figure.WriteLines(&out, sample().figures()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"bench":"recovery","case":"1x4","system":"torchrun","metric":"kill_to_step","value":9,"unit":"s","n":3,"samples":[9,8,30]}`,
		`{"bench":"recovery","case":"1x4","system":"holdfast-cold","metric":"kill_to_step","value":9.5,"unit":"s","n":2,"samples":[9,10]}`,
		`{"bench":"recovery","case":"1x4","system":"torchrun as it comes","metric":"recovered","value":0,"unit":"bool","n":1,"samples":[0]}`,
		`{"bench":"recovery","case":"1x4","system":"holdfast","metric":"kill_to_step_vs_torchrun","value":0.0222,"unit":"x","n":1}`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no line %s in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), `"case":"2x2","system":"holdfast","metric":"kill_to_step_vs_torchrun"`) {
		t.Error("a ratio without torchrun in the same case")
	}
}

// missed is the message of a run with missed goals, without a record.
func missed(t *testing.T, r *results) string {
	t.Helper()
	var progress bytes.Buffer
	result := figure.Result{Common: &figure.Common{}, Rows: r.figures(), Goals: r.goals(), Began: time.Now()}
	err := result.Conclude(io.Discard, &progress)
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestGoalsOfAPlainScript: it has its own goals, against torchrun and against the script with the client under the same load.
func TestGoalsOfAPlainScript(t *testing.T) {
	r := newResults()
	r.Add("1x4, no pause", systemHoldfast, killToStep, "s", 0.3)
	r.Add("1x4, no pause", systemHoldfast, standbyFirst, "s", 16)
	r.Add("1x4, 20 ms pause", systemHoldfast, killToStep, "s", 9)
	r.Add("plain, no pause", systemTorchrun, killToStep, "s", 10)
	r.Add("plain, no pause", systemHoldfast, killToStep, "s", 0.44)
	r.Add("plain, no pause", systemHoldfast, standbyFirst, "s", 19.6)
	if got := missed(t, r); got != "" {
		t.Fatalf("missed: %q; 0.044, 1.47 and 1.23 reach 0.07, 1.5 and 1.25", got)
	}
	r.Add("plain, no pause", systemHoldfast, killToStep, "s", 0.8, 0.8)
	r.Add("plain, no pause", systemHoldfast, standbyFirst, "s", 20.4, 20.4)
	r.Add("plain, no pause", systemHoldfast, standbyVain, "s", 120)
	got := missed(t, r)
	for _, want := range []string{"torchrun of holdfast is 0.08, the goal is at most 0.07", "client of holdfast is 2.67, the goal is at most 1.5",
		"client of holdfast is 1.27, the goal is at most 1.25", "standby_waited_in_vain_s of holdfast is 120, the goal is at most 20"} {
		if !strings.Contains(got, want) {
			t.Errorf("missed: %v; want %q", got, want)
		}
	}
}

func TestGoalsAreJudgedPerCase(t *testing.T) {
	r := sample()
	if got := missed(t, r); got != "" {
		t.Fatalf("missed: %q; 0.022 and 1.056 reach 0.15 and 1.1", got)
	}
	r.Add("2x2", systemTorchrun, killToStep, "s", 1)
	r.Add("2x2", systemHoldfast, standbyFirst, "s", 21)
	got := missed(t, r)
	for _, want := range []string{"2x2: kill_to_step_vs_torchrun of holdfast is 0.3,", "2x2: standby_first_ready_s of holdfast is 21,"} {
		if !strings.Contains(got, want) || strings.Contains(got, "1x4") {
			t.Fatalf("missed: %v; want %q, and nothing of 1x4", got, want)
		}
	}
}

// TestKillsBeforeStandbysAreCounted: such a kill is reported apart from those with standbys.
func TestKillsBeforeStandbysAreCounted(t *testing.T) {
	r := sample()
	r.early("1x4", 6)
	r.Add("1x4", systemLimit, killToStep, "s", 0.1)
	r.Add("1x4", systemLimitCold, killToStep, "s", 6)
	got := map[figure.Key]figure.Figure{}
	for _, f := range r.figures() {
		got[figure.Key{Case: f.Case, System: f.System, Metric: f.Metric}] = f
	}
	for _, c := range []struct {
		kase, system, metric string
		value                float64
		n                    int
	}{
		{"1x4", systemHoldfast, earlyKills, 1, 2}, {"1x4", systemHoldfast, earlyToStep, 6, 1}, {"1x4", systemHoldfast, killToStep, 0.2, 1},
		{"2x2", systemHoldfast, earlyKills, 0, 1},
		{"1x4", systemHoldfast, "kill_to_step_vs_limit", 2, 1}, {"1x4", systemTorchrun, "kill_to_step_vs_limit-cold", 1.5, 1},
	} {
		if f := got[figure.Key{Case: c.kase, System: c.system, Metric: c.metric}]; f.Value != c.value || f.N != c.n {
			t.Errorf("%s, %s: %+v, want %g of %d", c.kase, c.metric, f, c.value, c.n)
		}
	}
}
