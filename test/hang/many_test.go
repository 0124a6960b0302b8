package hang

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

var (
	manySilences = flag.Int("silences", 220, "number of healthy silences that TestMany plays")
	manyJobs     = flag.Int("jobs", 8, "number of jobs that TestMany runs at a time")
)

// manyResults has one line for each silence.
const manyResults = "testdata/many.jsonl"

const (
	// perJob is how many silences a job has at most.
	perJob = 24
	// anyRank: see kind.
	anyRank = -1
	// manyMemory is for a compiler beside two ranks.
	manyMemory = "3Gi"
	// jobLimit is how long a job takes at most.
	jobLimit = time.Hour
)

// kind is one way in which healthy ranks make no step; many.py has its code.
type kind struct {
	name, what string
	// rank is in it while the others wait; anyRank: any one.
	rank int
	// long is how many seconds some of its silences last; 0: none.
	long float64
}

var kinds = []kind{
	{"save", "rank 0 saves to slow storage", 0, 120},
	{"save-all", "all ranks save to slow storage, one longest", anyRank, 0},
	{"load", "one rank loads from slow storage", anyRank, 0},
	{"load-all", "all ranks load from slow storage, one longest", anyRank, 0},
	{"evaluation", "rank 0 evaluates alone", 0, 180},
	{"evaluation-all", "all ranks evaluate, one longest", anyRank, 0},
	{"g++", "`g++` compiles for one rank", anyRank, 0},
	{"torch.compile", "`torch.compile` compiles for one rank, with a cold cache", anyRank, 0},
	{"loader", "the worker of a data loader reads slowly", anyRank, 120},
	{"loader-no-worker", "a data loader without workers reads slowly", anyRank, 0},
	{"pipe", "one rank reads data from a slow program", anyRank, 0},
	{"connection", "one rank receives data from a slow connection", anyRank, 120},
	{"unpack", "a child of one rank unpacks data", anyRank, 0},
	{"upload", "a child of one rank copies a file slowly", anyRank, 120},
	{"import", "one rank imports many modules", anyRank, 0},
	{"stop-signal", "a signal stops one rank, and continues it", anyRank, 0},
	{"debugger", "a debugger holds one rank by `ptrace`", anyRank, 0},
	{"collection", "the garbage collector of one rank passes over many objects", anyRank, 0},
	{"numpy", "one rank computes with numpy", anyRank, 0},
	{"lock", "one rank computes in C, and keeps the interpreter's lock", anyRank, 0},
}

// starting lets one job at a time start: many at a time would take long.
var starting sync.Mutex

// healthyVerdicts are those that take a silence for no fault.
var healthyVerdicts = []string{busy, stopped, v1alpha1.ReasonUnexplained}

// played is one silence, and what was seen of it.
type played struct {
	Number int    `json:"number"`
	Kind   string `json:"kind"`
	What   string `json:"what"`
	Rank   int    `json:"rank"`
	// Seconds is how long the silence was to last at least.
	Seconds float64 `json:"seconds"`
	// Seen are the verdicts in their order. Restarts are those of the job from the beginning of the silence to the next one.
	Seen     []seen `json:"seen"`
	Restarts int    `json:"restarts"`
}

// plan returns the first n silences: the kinds in turn, each time in another order.
func plan(n int) (all []played) {
	r := rand.New(rand.NewPCG(1, 1))
	for round := 0; len(all) < n; round++ {
		for _, i := range r.Perm(len(kinds)) {
			k := kinds[i]
			p := played{Number: len(all), Kind: k.name, What: k.what, Rank: k.rank, Seconds: 45 + float64(r.IntN(16))}
			if drawn := r.IntN(pods * perPod); k.rank == anyRank {
				p.Rank = drawn
			}
			if k.long > 0 && round%4 == 0 {
				p.Seconds = k.long
			}
			all = append(all, p)
		}
	}
	return all[:n]
}

// TestMany plays the silences that testdata/many.jsonl does not have yet, and demands that none of all of them was ended or taken for a
// fault.
func TestMany(t *testing.T) {
	kept := harness.ReadRows[played](t, manyResults)
	todo := slices.DeleteFunc(plan(*manySilences), func(p played) bool {
		return slices.ContainsFunc(kept, func(k played) bool { return k.Number == p.Number })
	})
	if len(todo) > 0 {
		ctx, w := t.Context(), start(t.Context(), t)
		room := make(chan bool, *manyJobs)
		var running sync.WaitGroup
		for part := range slices.Chunk(todo, min(perJob, (len(todo)+*manyJobs-1) / *manyJobs)) {
			room <- true
			running.Go(func() {
				defer func() { <-room }()
				t.Run(fmt.Sprint(part[0].Number), func(t *testing.T) { playMany(ctx, t, w, part) })
			})
		}
		running.Wait()
	}
	all := harness.ReadRows[played](t, manyResults)
	for _, p := range all {
		for _, s := range p.Seen {
			if s.Ends || !slices.Contains(healthyVerdicts, s.Verdict) {
				t.Errorf("silence %d, %s for %.0f s, was taken for %s (ended: %t): %s", p.Number, p.Kind, p.Seconds, s.Verdict, s.Ends, s.Text)
			}
		}
	}
	if len(all) < *manySilences {
		t.Errorf("%d of %d silences were looked at: run it again", len(all), *manySilences)
	}
}

// playMany runs a job with these silences, and keeps those whose ranks were looked at.
func playMany(ctx context.Context, t *testing.T, w *world, silences []played) {
	name := fmt.Sprint("many-", silences[0].Number)
	arguments := make([]string, len(silences))
	for i, p := range silences {
		arguments[i] = fmt.Sprintf("%d:%s:%d:%.0f", p.Number, p.Kind, p.Rank, p.Seconds)
	}
	spec := pod(fmt.Sprintf(run+"/%s/%s %s", pods, perPod, "many.py", shared, name, strings.Join(arguments, " ")))
	spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse(manyMemory)
	harness.HostFolder(&spec, "usr", "/usr", "/usr") // with a compiler

	j := &job{world: w, silence: silence{name: name}, row: row{Name: name}}
	starting.Lock()
	j.create(ctx, t, spec)
	j.steps(ctx, t, 1, 1)
	starting.Unlock()
	seen := watched{job: j, silences: silences}
	if err := j.Until(ctx, name+" is over", jobLimit, func(ctx context.Context) (bool, string) {
		g, err := j.Gang(ctx, namespace, name)
		if err != nil {
			return false, err.Error()
		}
		seen.note(t, g)
		over := g.Status.Run.Verdict
		return over != nil, fmt.Sprintf("%s %+v; %s", g.Status.Phase, g.Status.Run.Progress.Standstill, seen.String())
	}); err != nil {
		t.Error(err)
	}
	seen.end(t, math.MaxInt)
	g, err := j.Gang(ctx, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if v := g.Status.Run.Verdict; v == nil || v.Reason != v1alpha1.ReasonFinished || len(g.Status.Run.Recoveries) > 0 {
		t.Errorf("the job ended with %+v after %+v", v, g.Status.Run.Recoveries)
	}
}

// watched is a job with many silences, one after another.
type watched struct {
	*job
	silences []played
	// at is the index of the newest silence that has begun; began and over are its times.
	at          int
	began, over time.Time
	restarts    int
}

// event is a line of many.py.
type event struct {
	Number int     `json:"number"`
	What   string  `json:"what"`
	At     float64 `json:"at"`
}

func (e event) time() time.Time { return time.UnixMilli(int64(e.At * 1000)) }

// note records what the Gang shows of the present silence.
func (w *watched) note(t *testing.T, g *v1alpha1.Gang) {
	for _, e := range harness.ReadRows[event](t, filepath.Join(w.folder, "events")) {
		i := slices.IndexFunc(w.silences, func(p played) bool { return p.Number == e.Number })
		switch {
		case i < w.at:
		case e.What == "begins":
			w.end(t, i)
			w.at, w.began = i, e.time()
		case w.over.Before(w.began):
			w.over = e.time()
		}
	}
	if w.began.IsZero() {
		return
	}
	p := &w.silences[w.at]
	r := row{Seen: p.Seen}
	if s := g.Status.Run.Progress.Standstill; s != nil && s.Since.Time.Sub(w.began).Abs() < 15*time.Second {
		r.taken(s.Verdict, s.Message, time.Since(w.began))
	}
	for _, c := range g.Status.Run.Recoveries[min(len(g.Status.Run.Recoveries), w.restarts):] {
		r.ended(c.Cause.Code, c.Cause.Message, c.DetectedAt.Sub(w.began))
		p.Restarts++
		w.restarts++
	}
	p.Seen = r.Seen
}

// end keeps the present silence, once the one with that index begins.
func (w *watched) end(t *testing.T, next int) {
	if w.began.IsZero() || next <= w.at {
		return
	}
	p := w.silences[w.at]
	t.Logf("silence %d: %s on rank %d for %.1f s: %+v", p.Number, p.Kind, p.Rank, p.Seconds, p.Seen)
	if len(p.Seen) > 0 && (w.over.After(w.began) || p.Restarts > 0) {
		harness.KeepRow(t, manyResults, p, func(a, b played) int { return cmp.Compare(a.Number, b.Number) })
	}
	w.began = time.Time{}
}

func (w *watched) String() string {
	text, _ := json.Marshal(w.silences[w.at])
	return string(text)
}

// TestPlan: each kind has its share, and the plan is always the same.
func TestPlan(t *testing.T) {
	all, count := plan(*manySilences), map[string]int{}
	same := func(a, b played) bool { return a.Kind == b.Kind && a.Rank == b.Rank && a.Seconds == b.Seconds }
	if !slices.EqualFunc(all, plan(*manySilences), same) {
		t.Error("two plans differ")
	}
	for _, p := range all {
		count[p.Kind]++
	}
	for _, k := range kinds {
		if n := count[k.name]; n < len(all)/len(kinds) {
			t.Errorf("%d silences of kind %s", n, k.name)
		}
		if !strings.Contains(many, fmt.Sprintf("%q: ", k.name)) {
			t.Errorf("many.py has no %s", k.name)
		}
	}
}
