package lives

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// play writes the lines of a rank's process: restored at a step, the step that the rank had reached before, then steps.
func play(r *Record, pod string, rank int, began float64, from, reached int64) {
	say := func(kind string, at float64, more string) {
		r.Line(pod, fmt.Sprintf(`{"bench":%q,"rank":%d,"pid":%d,"t":%f%s}`, kind, rank, 100+rank, began+at, more))
	}
	say("started", 0.1, "")
	say("imported", 1, "")
	say("joined", 2, "")
	say("restored", 3, fmt.Sprintf(`,"step":%d,"reached":%d,"load_ms":%d`, from, reached, rank))
	for n := range int64(9) {
		say("step", 4+float64(n)+0.1*float64(rank), fmt.Sprintf(`,"step":%d`, from+n+1))
	}
}

func seconds(at time.Time, since int64) float64 { return at.Sub(time.Unix(since, 0)).Seconds() }

func TestResumed(t *testing.T) {
	for _, c := range []struct {
		name          string
		from, reached [2]int64
		want          float64
		recomputed    int64
	}{
		{"all ranks at one step", [2]int64{7, 7}, [2]int64{7, 7}, 4.1, 0},
		{"one rank had finished one more: the step was not all ranks'", [2]int64{7, 7}, [2]int64{8, 7}, 4.1, 0},
		{"two steps are done again before one is new", [2]int64{5, 5}, [2]int64{8, 7}, 6.1, 2},
	} {
		r := New()
		for rank := range 2 {
			play(r, "pod", rank, 900, 0, 0)
		}
		if got, ok := r.Resumed(2, time.Unix(1000, 0)); ok {
			t.Errorf("%s: resumed by processes that were started before: %+v", c.name, got)
		}
		for rank := range 2 {
			play(r, "pod", rank, 1000, c.from[rank], c.reached[rank])
		}
		got, ok := r.Resumed(2, time.Unix(1000, 0))
		if !ok || math.Abs(seconds(got.Stepped, 1000)-c.want) > 1e-6 || got.Recomputed != c.recomputed || got.LoadMs != 1 ||
			math.Abs(seconds(got.Imported, 1000)-1) > 1e-6 {
			t.Errorf("%s: %+v, %t; want %v s and %d steps again", c.name, got, ok, c.want, c.recomputed)
		}
		if _, ok := r.Resumed(3, time.Unix(1000, 0)); ok {
			t.Errorf("%s: resumed without rank 2", c.name)
		}
	}
}

// TestResumedInAnotherPod: the new pod's first line is read late, the old pod's last line later still.
func TestResumedInAnotherPod(t *testing.T) {
	r := New()
	r.Line("b-0", `{"bench":"pod","t":99}`)
	r.Line("b-0", `{"bench":"pod","t":999}`)
	for rank := range 3 {
		play(r, fmt.Sprintf("a-%d", rank), rank, 100, 0, 0)
	}
	if at, ok := r.PodBorn("b-0"); !ok || at.Unix() != 99 || r.LastBorn() != at {
		t.Errorf("the pod was born at %v", at)
	}
	if got, ok := r.Resumed(3, time.Unix(0, 0)); !ok || got.Stepped.Unix() != 104 || got.Recomputed != 0 {
		t.Errorf("a fresh start: %+v, %t", got, ok)
	}
	play(r, "b-2", 2, 210, 5, 9)
	play(r, "a-0", 0, 205, 5, 9)
	if got, ok := r.Resumed(3, time.Unix(200, 0)); ok {
		t.Errorf("rank 1 is missing: %+v", got)
	}
	play(r, "b-1", 1, 208, 5, 8) // this rank had reached 8, all others 9
	r.Line("a-2", `{"bench":"step","rank":2,"t":199,"step":9}`)
	// Step 9 is the first that not all had finished: the late rank finishes it at 210+4+3.
	if got, ok := r.Resumed(3, time.Unix(200, 0)); !ok || got.Recomputed != 3 || got.Stepped.Unix() != 217 || got.Restored.Unix() != 213 ||
		got.Started.Unix() != 210 {
		t.Errorf("got %+v, %t", got, ok)
	}
}

func TestResumedNeedsANewStep(t *testing.T) {
	r := New()
	play(r, "a", 0, 100, 5, 20) // reaches 14: all of it was finished before
	if got, ok := r.Resumed(1, time.Unix(0, 0)); ok {
		t.Errorf("steps that were done before count as new: %+v", got)
	}
}

// TestResumedOfAPlainScript: it restores nothing and restarts at step 1, so any step of all its new processes counts.
func TestResumedOfAPlainScript(t *testing.T) {
	r := New()
	for _, began := range []float64{900, 1000} {
		for rank := range 2 {
			say := func(kind string, at float64, more string) {
				r.Line("pod", fmt.Sprintf(`{"bench":%q,"rank":%d,"t":%f%s}`, kind, rank, began+at, more))
			}
			say("started", 0.1, "")
			say("imported", 1, "")
			if got, ok := r.Resumed(2, time.Unix(1000, 0)); ok {
				t.Fatalf("%+v before there was a step", got)
			}
			say("joined", 2, "")
			say("step", 4+float64(rank), `,"step":1`)
		}
	}
	if got, ok := r.Resumed(2, time.Unix(1000, 0)); !ok || got.Stepped.Unix() != 1005 || !got.Restored.IsZero() || got.Recomputed != 0 {
		t.Fatalf("%+v, %t; want 5 s to the first step", got, ok)
	}
}

func TestTheNewestProcessCounts(t *testing.T) {
	r := New()
	for rank := range 2 {
		play(r, "pod", rank, 1000, 7, 7)
	}
	r.Line("pod", `{"bench":"started","rank":1,"pid":300,"t":1010}`)
	if got, ok := r.Resumed(2, time.Unix(1000, 0)); ok {
		t.Fatalf("%+v though rank 1 was started again", got)
	}
	if pod, pid, ok := r.Newest(1); !ok || pod != "pod" || pid != 300 {
		t.Fatalf("%s %d %t, want the newest process", pod, pid, ok)
	}
	if got := r.Progress(3, time.Unix(1005, 0)); got != "of 3 ranks 1 started, 0 imported, 0 joined, 0 restored" {
		t.Error(got)
	}
}

func TestOtherLines(t *testing.T) {
	r := New()
	for _, line := range []string{"Traceback", `{"bench":`, `{"level":"info"}`, `{"bench":"limit","s":2}`, `{"bench":"limit","s":3}`} {
		r.Line("p", line)
	}
	if got := strings.Join(r.Tail(2), "|"); got != `p: {"bench":|p: {"level":"info"}` {
		t.Errorf("tail = %q", got)
	}
	if got := r.Seconds("limit"); fmt.Sprint(got) != "[2 3]" {
		t.Errorf("limits %v", got)
	}
}

func TestRates(t *testing.T) {
	r := New()
	for _, at := range []float64{1000.2, 1001, 1002, 1003} {
		r.Line("p", fmt.Sprintf(`{"bench":"rate","rank":0,"t":%f,"step_ms":5}`, at))
	}
	if got := r.RatesBetween(time.Unix(1000, 0), time.Unix(1002, 500e6)); len(got) != 2 {
		t.Errorf("%d rates, want the two whose window lies within", len(got))
	}
	if e, ok := r.RateAfter(time.Unix(1002, 0)); !ok || e.StepMs != 5 {
		t.Errorf("%+v, %t", e, ok)
	}
	if _, ok := r.RateAfter(time.Unix(1003, 0)); ok {
		t.Error("a rate of later")
	}
}
