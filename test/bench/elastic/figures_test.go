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

// life returns the steps of all ranks of one generation: a step takes a second, and rank r finishes it r/10 s later.
func life(world int, began float64, from, to int64) (out []lives.Event) {
	const batch = 8
	for step := from; step <= to; step++ {
		for rank := range world {
			first := batch*int64(rank)/int64(world) + batch*(step-1)
			end := batch*int64(rank+1)/int64(world) + batch*(step-1)
			out = append(out, lives.Event{Rank: rank, World: world, Step: step, T: began + float64(step-from) + float64(rank)/10,
				First: first, Count: end - first, Pod: "p", Began: second(began)})
		}
	}
	return out
}

func second(t float64) time.Time { return lives.Event{T: t}.At() }

func TestChanged(t *testing.T) {
	steps := slices.Concat(life(4, 10, 1, 9), life(2, 30, 8, 12), life(4, 40, 13, 14))
	lost, ok := changed(steps, 2, second(19))
	if !ok || lost.again != 2 || !lost.last.Equal(second(18.3)) || !lost.first.Equal(second(32.1)) {
		t.Errorf("lost: %+v, %t", lost, ok)
	}
	joined, ok := changed(steps, 4, second(33))
	if !ok || joined.again != 0 || !joined.last.Equal(second(34.1)) || !joined.first.Equal(second(40.3)) {
		t.Errorf("joined: %+v, %t", joined, ok)
	}
	for what, few := range map[string][]lives.Event{
		"a rank without a new step":  steps[:len(steps)-1-2*4],
		"steps that are done again":  slices.Concat(life(4, 10, 1, 9), life(2, 30, 8, 9)),
		"no process after that time": life(4, 10, 1, 9),
	} {
		if c, ok := changed(few, 4, second(33)); ok {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

func TestAccounted(t *testing.T) {
	sound := slices.Concat(life(4, 10, 1, 9), life(2, 30, 8, 12), life(4, 40, 13, 14))
	leftOut := edited(sound, func(e *lives.Event) {
		if e.World == 4 && e.Step > 12 {
			e.First += 8
		}
	})
	for _, c := range []struct {
		what              string
		steps             []lives.Event
		repeated, skipped int64
	}{
		{"steps done again count once", sound, 0, 0},
		{"a step that not all ranks finished", sound[:len(sound)-1], 0, 0},
		{"a rank that died before its line", without(sound, 7, 3), 0, 0},
		{"a pod that died before its lines, and a step left out later", without(without(leftOut, 7, 2), 7, 3), 0, 8},
		{"a rank that takes another's share", edited(sound, func(e *lives.Event) {
			if e.World == 2 && e.Step == 12 && e.Rank == 1 {
				e.First -= 4
			}
		}), 4, 4},
		{"a step that was left out", leftOut, 0, 8},
	} {
		if repeated, skipped := accounted(c.steps); repeated != c.repeated || skipped != c.skipped {
			t.Errorf("%s: %d repeated, %d skipped", c.what, repeated, skipped)
		}
	}
}

// without leaves out what a rank says of a step.
func without(steps []lives.Event, step int64, rank int) []lives.Event {
	return slices.DeleteFunc(slices.Clone(steps), func(e lives.Event) bool { return e.Step == step && e.Rank == rank })
}

func edited(steps []lives.Event, edit func(*lives.Event)) []lives.Event {
	steps = slices.Clone(steps)
	for i := range steps {
		edit(&steps[i])
	}
	return steps
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
	type run struct {
		lost, grown, torchrun float64
		again                 int64
		steps                 []lives.Event
	}
	good := run{lost: 1.4, grown: 1.9, torchrun: 46, steps: life(4, 1, 1, 3)}
	for what, alter := range map[string]func(*run){
		"": func(*run) {},
		detectedToStep + "_vs_limit of holdfast is 1.6":  func(r *run) { r.lost = 1.6 },
		detectedToStep + vsBest + " of holdfast is 0.14": func(r *run) { r.torchrun = 10 },
		stall + " of holdfast is 2.1":                    func(r *run) { r.grown = 2.1 },
		again + " of holdfast is 1":                      func(r *run) { r.again = 1 },
		repeated + " of holdfast is 8": func(r *run) {
			r.steps = edited(r.steps, func(e *lives.Event) { e.First = e.First%8 + 8*min(1, e.Step-1) })
		},
	} {
		now, g, r := second(100), good, newResults()
		alter(&g)
		after := func(s float64) change {
			return change{last: now, first: now.Add(time.Duration(s * float64(time.Second))), again: g.again}
		}
		r.lost(systemLimit, now, now, after(1))
		r.lost(systemHoldfast, now.Add(-time.Second), now, after(g.lost))
		r.lost(systemTorchrun, now, now, after(g.torchrun))
		r.lost(systemDLRover, now, now, after(70))
		r.joined(systemHoldfast, now, after(g.grown))
		r.account(systemHoldfast, g.steps)
		if got := missed(r); (got == "") != (what == "") || !strings.Contains(got, what) {
			t.Errorf("%q: missed %q", what, got)
		}
	}
}
