package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

// event is one line that a pod or the training script printed. Times are their own, so how output travels does not count.
type event struct {
	Kind    string  `json:"bench"`
	Rank    int     `json:"rank"`
	T       float64 `json:"t"`
	Step    int64   `json:"step"`
	Reached int64   `json:"reached"`
	StepMs  float64 `json:"step_ms"`
}

func (e event) at() time.Time { return time.Unix(0, int64(e.T*1e9)) }

// life is one process of one rank. Its times are zero until reached.
type life struct {
	started, imported, joined, restored time.Time
	from, reached                       int64
	steps                               []event
}

type assignment struct {
	pod  string
	rank int
}

// record collects what all pods of one job print. It promises that its answers hang only on the lines of each pod and their order,
// not on when they were read nor on which pod's came first.
type record struct {
	mu    sync.Mutex
	born  map[string]time.Time
	lives map[assignment][]*life
	rates []event
	other []string
}

func newRecord() *record {
	return &record{born: map[string]time.Time{}, lives: map[assignment][]*life{}}
}

// line takes one line of a pod's output.
func (r *record) line(pod, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if !strings.HasPrefix(text, `{"bench":`) || json.Unmarshal([]byte(text), &e) != nil {
		r.other = append(r.other[max(0, len(r.other)-200):], pod+": "+text)
		return
	}
	s := assignment{pod, e.Rank}
	switch e.Kind {
	case "pod":
		if _, ok := r.born[pod]; !ok { // the launcher may be started again
			r.born[pod] = e.at()
		}
		return
	case "rate":
		r.rates = append(r.rates, e)
		return
	case "started":
		r.lives[s] = append(r.lives[s], &life{started: e.at()})
		return
	}
	lives := r.lives[s]
	if len(lives) == 0 {
		return
	}
	switch l := lives[len(lives)-1]; e.Kind {
	case "imported":
		l.imported = e.at()
	case "joined":
		l.joined = e.at()
	case "restored":
		l.restored, l.from, l.reached = e.at(), e.Step, e.Reached
	case "step":
		l.steps = append(l.steps, e)
	}
}

// newest is the process of a rank that started last, whichever pod it is in; nil where there is none. The caller holds mu.
func (r *record) newest(rank int) *life {
	var out *life
	for s, lives := range r.lives {
		if l := lives[len(lives)-1]; s.rank == rank && (out == nil || l.started.After(out.started)) {
			out = l
		}
	}
	return out
}

// resumption is how training came to go on: moments of the last rank.
type resumption struct {
	started, imported, joined, restored, stepped time.Time
	recomputed                                   int64
}

// resumed says how training went on once every rank has, in a process that was started after a moment, finished a step that not all
// ranks had finished before. A step joins all ranks, so the newest process of each is what counts.
func (r *record) resumed(after time.Time) (resumption, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	floor, from := int64(math.MaxInt64), int64(math.MaxInt64)
	for rank := range ranks {
		l := r.newest(rank)
		if l == nil || l.started.Before(after) || l.restored.IsZero() {
			return resumption{}, false
		}
		floor, from = min(floor, l.reached), min(from, l.from)
	}
	out := resumption{recomputed: max(0, floor-from)}
	for rank := range ranks {
		l := r.newest(rank)
		first := time.Time{}
		for _, s := range l.steps {
			if s.Step > floor {
				first = s.at()
				break
			}
		}
		if first.IsZero() {
			return resumption{}, false
		}
		out.started, out.imported = later(out.started, l.started), later(out.imported, l.imported)
		out.joined, out.restored = later(out.joined, l.joined), later(out.restored, l.restored)
		out.stepped = later(out.stepped, first)
	}
	return out, true
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// podBorn is when a pod's process printed its first line.
func (r *record) podBorn(pod string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.born[pod]
	return at, ok
}

// lastBorn is when the last of all pods did.
func (r *record) lastBorn() (out time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.born {
		out = later(out, at)
	}
	return out
}

// rateAfter is what a step took, pause and saving included, where that was told after a moment.
func (r *record) rateAfter(at time.Time) (ms float64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rates) == 0 || !r.rates[len(r.rates)-1].at().After(at) {
		return 0, false
	}
	return r.rates[len(r.rates)-1].StepMs, true
}

// progress says in a few words how far the processes that were started after a moment have come.
func (r *record) progress(after time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var started, joined, restored int
	for rank := range ranks {
		if l := r.newest(rank); l != nil && l.started.After(after) {
			started++
			if !l.joined.IsZero() {
				joined++
			}
			if !l.restored.IsZero() {
				restored++
			}
		}
	}
	return fmt.Sprintf("of %d ranks %d started, %d joined, %d restored", ranks, started, joined, restored)
}

// tail returns the last lines that were not the script's.
func (r *record) tail(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.other[max(0, len(r.other)-n):]...)
}
