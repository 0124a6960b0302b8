package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
)

// missed is the message of a run with missed goals.
func missed(r *results) string {
	result := figure.Result{Common: &figure.Common{}, Rows: r.figures(), Goals: r.goals(), Began: time.Now()}
	if err := result.Conclude(io.Discard, &bytes.Buffer{}); err != nil {
		return err.Error()
	}
	return ""
}

func TestGoals(t *testing.T) {
	for what, samples := range map[string][2]float64{
		"":                          {24, 100},
		"check_s of holdfast is":    {26, 120},
		"check_s_vs_dlrover-run of": {24, 40},
	} {
		r := newResults()
		r.Add(caseCold, systemHoldfast, checkTime, "s", 18, samples[0], 20)
		r.Add(caseCold, systemDLRover, checkTime, "s", samples[1])
		got := missed(r)
		if what == "" && got != "" || !strings.Contains(got, what) {
			t.Errorf("%q: missed %q", what, got)
		}
	}
}

// TestGoalOfPassedNodes: a start that is delayed by more than a second misses it, although no pod is tried.
func TestGoalOfPassedNodes(t *testing.T) {
	for delay, want := range map[float64]string{0.8: "", 1.2: "start_delay_s of holdfast is"} {
		r := newResults()
		r.Add(casePassed, systemUnchecked, startTime, "s", 5)
		r.Add(casePassed, systemHoldfast, startTime, "s", 5+delay)
		if got := missed(r); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%g s: missed %q", delay, got)
		}
	}
}

// TestAnnotations: a gang on a node that has passed requests a check as usual, so that only the pass saves it.
func TestAnnotations(t *testing.T) {
	for _, c := range []struct{ kase, system, mode, result string }{
		{caseWarm, systemHoldfast, v1alpha1.NodeCheckAlways, "Passed"},
		{casePassed, systemHoldfast, v1alpha1.NodeCheckAuto, "Skipped"},
		{casePassed, systemUnchecked, v1alpha1.NodeCheckOff, ""},
	} {
		a, result := annotationsOf(c.kase, c.system)
		if a[v1alpha1.AnnotationNodeCheck] != c.mode || result != c.result {
			t.Errorf("%s, %s: %v, %q", c.kase, c.system, a, result)
		}
	}
}

// TestStartDelay is the difference of medians; without one of them there is none.
func TestStartDelay(t *testing.T) {
	r := newResults()
	r.Add(caseWarm, systemHoldfast, startTime, "s", 20, 30, 22)
	key := figure.Key{Case: caseWarm, System: systemHoldfast, Metric: startDelay}
	if figure.Has(r.figures(), key) {
		t.Error("a delay of what was not measured")
	}
	r.Add(caseWarm, systemUnchecked, startTime, "s", 10, 9, 14)
	for _, f := range r.figures() {
		if f.Metric == startDelay && f.Value != 12 {
			t.Errorf("%+v, want 12", f)
		}
	}
	if !figure.Has(r.figures(), key) {
		t.Error("no delay")
	}
}

// TestLinesOfDLRover: the lines are those that it prints.
func TestLinesOfDLRover(t *testing.T) {
	d := &dlrover{}
	line := func(second int64, text string) { d.line(text, time.Unix(second, 0)) }
	line(1, "[2026-11-29 15:57:16,244] [INFO] [training.py:1724:run] [dlrover-trainer] starting node-check workers for entrypoint: python3")
	line(2, "[2026-11-29 15:57:16,741] [INFO] [training.py:1724:run] [dlrover-trainer] starting node-check workers for entrypoint: python3")
	for i := range int64(pods) {
		if _, ok := d.took(); ok {
			t.Errorf("over after %d nodes", i)
		}
		line(40+i, "[2026-11-29 15:57:56,741] [INFO] [training.py:1961:node_health_check] Network check result is True")
	}
	if took, ok := d.took(); !ok || took != 41*time.Second {
		t.Errorf("%s, %v", took, ok)
	}
	line(50, "Network check result is False")
	if _, ok := d.took(); !ok || d.passed != pods {
		t.Errorf("%d passed", d.passed)
	}
}
