package main

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// TestInterval: the quantiles are those of printed tables.
func TestInterval(t *testing.T) {
	for freedom, want := range map[int]float64{1: 12.706, 4: 2.776, 10: 2.228, 11: 2.201, 20: 2.086, 60: 2.000, 1000: 1.962} {
		if got := quantile(freedom); math.Abs(got-want) > 0.003 {
			t.Errorf("%d degrees of freedom: %.4f, want %.3f", freedom, got, want)
		}
	}
	if mean, half := interval([]float64{1, 2, 3, 4, 5}); mean != 3 || math.Abs(half-3.513) > 0.001 {
		t.Errorf("mean %v ± %v, want 3 ± 3.513", mean, half)
	}
	if mean, _ := interval([]float64{5, 1, 900, 2, 3, 4, -900, 3, 3, 3}); math.Abs(mean-3) > 1e-9 {
		t.Errorf("two samples of ten that others disturbed make the mean %v, want 3", mean)
	}
	if _, half := interval([]float64{1}); !math.IsInf(half, 1) {
		t.Errorf("one sample has the interval ± %v", half)
	}
}

// TestTurns: over two groups no job is earlier than the other, and each half of a group has each job once.
func TestTurns(t *testing.T) {
	place := map[string]int{}
	for number := range 2 {
		all := turns(number)
		for i, system := range all {
			place[system] += i
		}
		if all[0] == all[1] || all[2] == all[3] {
			t.Errorf("group %d: %v", number, all)
		}
	}
	if place[systemHoldfast] != place[systemTorchrun] || len(place) != 2 {
		t.Errorf("the sums of places are %v", place)
	}
}

// made has rounds in which the hook costs 2 % of the time and 1 % of the processor time, and torchrun's halves are equal.
func made(rounds, groups int) *results {
	r := newResults()
	for i := range rounds {
		var all []group
		for n := range groups {
			speed := 1 + float64((i*groups+n)%3)/10 // the machine's speed drifts
			theirs := answer{hooked: cost{0.010 * speed, 0.020 * speed}, bare: cost{0.010 * speed, 0.020 * speed}}
			ours := answer{hooked: cost{0.0102 * speed, 0.0202 * speed}, bare: theirs.bare}
			all = append(all, groupOf(map[string][]answer{systemHoldfast: {ours, ours}, systemTorchrun: {theirs, theirs}}))
		}
		r.note(all, agentsUse{cpu: 1}, agentsUse{cpu: 1.5, memory: 32 << 20}, 100*time.Second)
	}
	return r
}

func TestFigures(t *testing.T) {
	rows := made(3, 4).figures()
	for metric, want := range map[string]float64{
		stepMs + over + systemUnhooked: 2, stepMs + over + systemUnhooked + most: 2,
		stepMs + over + systemTorchrun: 2, stepMs + over + systemTorchrun + most: 2,
		stepCPU + over + systemUnhooked: 1, stepCPU + over + systemTorchrun: 1, agentCPU: 0.5, agentMemory: 32,
	} {
		i := slices.IndexFunc(rows, func(f figure.Figure) bool { return f.System == systemHoldfast && f.Metric == metric })
		if i < 0 || math.Abs(rows[i].Value-want) > 0.001 {
			t.Errorf("%s: want %v, rows: %+v", metric, want, rows)
		}
	}
	i := slices.IndexFunc(rows, func(f figure.Figure) bool { return f.Metric == stepMs+over+systemControl+most })
	if i < 0 || rows[i].Value != 0 || rows[i].N != 12 {
		t.Errorf("the control of 12 groups is not 0: %+v", rows)
	}
	for _, g := range goals() {
		if !figure.Has(rows, g.Key) {
			t.Errorf("a full run has no %+v", g.Key)
		}
	}
	if rows := made(1, 2).figures(); figure.Has(rows, goals()[0].Key) {
		t.Error("two groups have an interval")
	}
}

// TestAnswersOfRanks: the slowest rank's time and all ranks' processor time count.
func TestAnswersOfRanks(t *testing.T) {
	var a answer
	a.add(answer{hooked: cost{2, 5}, bare: cost{1, 1}, before: 7, after: 8, hooks: 1})
	a.add(answer{hooked: cost{1, 6}, bare: cost{3, 1}, before: 1, after: 2, hooks: 0})
	if want := (answer{hooked: cost{2, 11}, bare: cost{3, 2}, before: 8, after: 10, hooks: 1}); a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
}

// TestProcesses: a child is found below this process, and what this process has used is read.
func TestProcesses(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	if all := descendants(parents(), os.Getpid()); !slices.Contains(all, child.Process.Pid) {
		t.Errorf("process %d is not among %v", child.Process.Pid, all)
	}
	use := useOf(os.Getpid())
	for began := time.Now(); use.cpu == 0 && time.Since(began) < 20*time.Second; {
		use = useOf(os.Getpid())
	}
	if use.cpu <= 0 || use.memory < 1<<20 {
		t.Errorf("this process uses %+v", use)
	}
}

func TestOptionsRefused(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--rounds=0"}, Want: "at least 1"},
		{Args: []string{"--quick", "--record=x"}, Want: "--record"},
	})
}
