package main

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// lives writes what processes of ranks print: restored at a step, with the step that the rank had reached before, then steps.
func lives(r *record, from, reached []int64, began float64) {
	for rank := range from {
		say := func(kind string, at float64, more string) {
			r.line("pod", fmt.Sprintf(`{"bench":%q,"rank":%d,"pid":%d,"t":%f%s}`, kind, rank, 100+rank, began+at, more))
		}
		say("started", 0.1, "")
		say("imported", 1, "")
		say("joined", 2, "")
		say("restored", 3, fmt.Sprintf(`,"step":%d,"reached":%d,"load_ms":%d`, from[rank], reached[rank], rank))
		for n := range int64(4) {
			say("step", 4+float64(n)+0.1*float64(rank), fmt.Sprintf(`,"step":%d`, from[rank]+n+1))
		}
	}
}

func TestRecovered(t *testing.T) {
	killed := time.Unix(1000, 0)
	for _, tc := range []struct {
		name          string
		from, reached []int64
		want          float64
		recomputed    int64
	}{
		{"all ranks at one step", []int64{7, 7}, []int64{7, 7}, 4.1, 0},
		{"one rank had finished one more: the step was not all ranks'", []int64{7, 7}, []int64{8, 7}, 4.1, 0},
		{"two steps are done again before one is new", []int64{5, 5}, []int64{8, 7}, 6.1, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRecord()
			lives(r, []int64{0, 0}, []int64{0, 0}, 900)
			if _, ok := r.recovered(2, killed); ok {
				t.Fatal("recovered by processes that were started before the kill")
			}
			lives(r, tc.from, tc.reached, 1000)
			got, ok := r.recovered(2, killed)
			if !ok || math.Abs(got.stepped-tc.want) > 1e-6 || got.recomputed != tc.recomputed || got.loadMs != 1 || math.Abs(got.imported-1) > 1e-6 {
				t.Fatalf("recovered = %+v, %t; want %v s and %d steps again", got, ok, tc.want, tc.recomputed)
			}
			if _, ok := r.recovered(3, killed); ok {
				t.Fatal("recovered without rank 2")
			}
		})
	}
}

// A plain script restores nothing and begins anew: any step of all its new processes counts.
func TestRecoveredOfAPlainScript(t *testing.T) {
	r := newRecord()
	for _, began := range []float64{900, 1000} {
		for rank := range 2 {
			say := func(kind string, at float64, more string) {
				r.line("pod", fmt.Sprintf(`{"bench":%q,"rank":%d,"pid":%d,"t":%f%s}`, kind, rank, 100+rank, began+at, more))
			}
			say("started", 0.1, "")
			say("imported", 1, "")
			if got, ok := r.recovered(2, time.Unix(1000, 0)); ok {
				t.Fatalf("recovered = %+v before there was a step", got)
			}
			say("joined", 2, "")
			say("step", 4+float64(rank), `,"step":1`)
		}
	}
	got, ok := r.recovered(2, time.Unix(1000, 0))
	if !ok || math.Abs(got.stepped-5) > 1e-6 || got.restored != 0 || got.recomputed != 0 {
		t.Fatalf("recovered = %+v, %t; want 5 s to the first step", got, ok)
	}
}

func TestRecoveredWaitsForTheNewestProcess(t *testing.T) {
	r := newRecord()
	lives(r, []int64{7, 7}, []int64{7, 7}, 1000)
	r.line("pod", `{"bench":"started","rank":1,"pid":300,"t":1010}`)
	if got, ok := r.recovered(2, time.Unix(1000, 0)); ok {
		t.Fatalf("recovered = %+v though rank 1 was started again", got)
	}
	if pod, pid, ok := r.victim(1); !ok || pod != "pod" || pid != 300 {
		t.Fatalf("victim = %s %d %t, want the newest process", pod, pid, ok)
	}
}

func TestOtherLinesAreKeptForPeople(t *testing.T) {
	r := newRecord()
	for _, line := range []string{"Traceback", `{"bench":`, `{"level":"info"}`} {
		r.line("p", line)
	}
	if got := strings.Join(r.tail(2), "|"); got != `p: {"bench":|p: {"level":"info"}` {
		t.Fatalf("tail = %q", got)
	}
}

func TestRatesBetween(t *testing.T) {
	r := newRecord()
	for _, at := range []float64{1000.2, 1001, 1002, 1003} {
		r.line("p", fmt.Sprintf(`{"bench":"rate","rank":0,"t":%f,"step_ms":5}`, at))
	}
	if got := r.ratesBetween(time.Unix(1000, 0), time.Unix(1002, 500e6)); len(got) != 2 {
		t.Fatalf("%d rates, want the two whose window lies within", len(got))
	}
}
