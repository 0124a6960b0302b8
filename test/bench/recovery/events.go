package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

// event is one line that the training script printed. Times are the script's own, so how output travels does not count.
type event struct {
	Kind    string  `json:"bench"`
	Rank    int     `json:"rank"`
	PID     int     `json:"pid"`
	T       float64 `json:"t"`
	Step    int64   `json:"step"`
	Reached int64   `json:"reached"`
	LoadMs  float64 `json:"load_ms"`
	StepMs  float64 `json:"step_ms"`
	SaveMs  float64 `json:"save_ms"`
	Seconds float64 `json:"s"`
	pod     string
}

func (e event) at() time.Time { return time.Unix(0, int64(e.T*1e9)) }

func parseEvent(line string) (event, bool) {
	var e event
	if !strings.HasPrefix(line, `{"bench":`) || json.Unmarshal([]byte(line), &e) != nil {
		return event{}, false
	}
	return e, true
}

// life is one process of one rank. Its times are zero until reached.
type life struct {
	pod                                 string
	pid                                 int
	started, imported, joined, restored time.Time
	from, reached                       int64
	loadMs                              float64
	steps                               []event
}

// record collects what all ranks of one job print. It promises that its answers hang only on the lines, not on when they were read.
type record struct {
	mu     sync.Mutex
	lives  map[int][]*life
	rates  []event
	limits map[string][]float64
	other  []string
}

func newRecord() *record {
	return &record{lives: map[int][]*life{}, limits: map[string][]float64{}}
}

// line takes one line of a pod's output.
func (r *record) line(pod, text string) {
	e, ok := parseEvent(text)
	e.pod = pod
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok {
		r.other = append(r.other[max(0, len(r.other)-200):], pod+": "+text)
		return
	}
	switch e.Kind {
	case "started":
		r.lives[e.Rank] = append(r.lives[e.Rank], &life{pod: pod, pid: e.PID, started: e.at()})
		return
	case "rate":
		r.rates = append(r.rates, e)
		return
	case kindLimit, kindLimitCold, kindLimitAlone:
		r.limits[e.Kind] = append(r.limits[e.Kind], e.Seconds)
		return
	}
	lives := r.lives[e.Rank]
	if len(lives) == 0 {
		return
	}
	switch l := lives[len(lives)-1]; e.Kind {
	case "imported":
		l.imported = e.at()
	case "joined":
		l.joined = e.at()
	case "restored":
		l.restored, l.from, l.reached, l.loadMs = e.at(), e.Step, e.Reached, e.LoadMs
	case "step":
		l.steps = append(l.steps, e)
	}
}

// recovery is what one kill cost: times in seconds since the kill, each to the last rank.
type recovery struct {
	started, imported, joined, restored, stepped float64
	loadMs                                       float64
	recomputed                                   int64
}

// recovered says what a kill cost once every rank has finished a step that not all of them had finished before it; of a plain script, which
// begins anew, once every rank has finished a step. A step joins all
// ranks, so the newest process of each is what counts, however many were started in between.
func (r *record) recovered(ranks int, killed time.Time) (recovery, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := make([]*life, 0, ranks)
	floor, from := int64(math.MaxInt64), int64(math.MaxInt64)
	for rank := range ranks {
		lives := r.lives[rank]
		if len(lives) == 0 {
			return recovery{}, false
		}
		l := lives[len(lives)-1]
		if l.started.Before(killed) || l.joined.IsZero() { // a plain script restores nothing; no other steps before it has
			return recovery{}, false
		}
		newest = append(newest, l)
		floor, from = min(floor, l.reached), min(from, l.from)
	}
	out := recovery{recomputed: max(0, floor-from)}
	for _, l := range newest {
		at, ok := firstAbove(l.steps, floor)
		if !ok {
			return recovery{}, false
		}
		later(&out.started, l.started, killed)
		later(&out.imported, l.imported, killed)
		later(&out.joined, l.joined, killed)
		if !l.restored.IsZero() {
			later(&out.restored, l.restored, killed)
		}
		later(&out.stepped, at, killed)
		out.loadMs = max(out.loadMs, l.loadMs)
	}
	return out, true
}

// progress says in a few words how far the processes that were started after a moment have come.
func (r *record) progress(ranks int, after time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var started, imported, joined, restored int
	for _, lives := range r.lives {
		l := lives[len(lives)-1]
		if l.started.Before(after) {
			continue
		}
		started++
		for _, c := range []struct {
			at    time.Time
			count *int
		}{{l.imported, &imported}, {l.joined, &joined}, {l.restored, &restored}} {
			if !c.at.IsZero() {
				*c.count++
			}
		}
	}
	return fmt.Sprintf("of %d ranks %d started, %d imported, %d joined, %d restored", ranks, started, imported, joined, restored)
}

func firstAbove(steps []event, floor int64) (time.Time, bool) {
	for _, s := range steps {
		if s.Step > floor {
			return s.at(), true
		}
	}
	return time.Time{}, false
}

func later(seconds *float64, at, since time.Time) {
	*seconds = max(*seconds, at.Sub(since).Seconds())
}

// victim is the newest process of a rank.
func (r *record) victim(rank int) (pod string, pid int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lives := r.lives[rank]
	if len(lives) == 0 {
		return "", 0, false
	}
	l := lives[len(lives)-1]
	return l.pod, l.pid, true
}

// ratesBetween returns the rates whose window (it ends at the line's time) lies within two moments.
func (r *record) ratesBetween(from, to time.Time) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []event
	for _, e := range r.rates {
		if e.at().Add(-rateWindow).After(from) && e.at().Before(to) {
			out = append(out, e)
		}
	}
	return out
}

// rateWindow is how long the script counts steps for one rate, with room for one slow step.
const rateWindow = 700 * time.Millisecond

// The kinds of lines that limit.py prints: processes that were forked, new ones all at once, and new ones each alone.
const (
	kindLimit      = "limit"
	kindLimitCold  = "limit_cold"
	kindLimitAlone = "limit_alone"
)

func (r *record) limitTimes(kind string) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]float64(nil), r.limits[kind]...)
}

// tail returns the last lines that were not the script's.
func (r *record) tail(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.other[max(0, len(r.other)-n):]...)
}
