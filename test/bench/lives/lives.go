// Package lives creates the training jobs of benchmarks, with all pods from one template, and collects the output of
// pods and ranks. The results depend only on the lines of each pod and their order, not on when the lines were read or
// in which order pods were read. All times come from the lines, so that delayed output does not count.
package lives

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Event is one line that a pod or the training script printed.
type Event struct {
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
	// World is the number of ranks; First and Count are the samples of a rank's step.
	World int   `json:"world"`
	First int64 `json:"first"`
	Count int64 `json:"count"`

	Pod string `json:"-"`
	// Began is when the process of a step was started.
	Began time.Time `json:"-"`
}

// At is the time at which the line was printed.
func (e Event) At() time.Time { return time.Unix(0, int64(e.T*1e9)) }

// life is one process of one rank. A time is zero until the process reaches it.
type life struct {
	pod                                 string
	pid                                 int
	started, imported, joined, restored time.Time
	from, reached                       int64
	loadMs                              float64
	steps                               []Event
}

type assignment struct {
	pod  string
	rank int
}

// Record is the record of one job.
type Record struct {
	mu     sync.Mutex
	born   map[string]time.Time
	lives  map[assignment][]*life
	rates  []Event
	others map[string][]float64 // seconds, by kind of line
	text   []string
}

// New returns an empty record.
func New() *Record {
	return &Record{born: map[string]time.Time{}, lives: map[assignment][]*life{}, others: map[string][]float64{}}
}

// keptLines is the number of other lines that are kept for error messages.
const keptLines = 200

// Line records one line of a pod's output.
func (r *Record) Line(pod, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e Event
	if !strings.HasPrefix(text, `{"bench":`) || json.Unmarshal([]byte(text), &e) != nil {
		r.text = append(r.text[max(0, len(r.text)-keptLines):], pod+": "+text)
		return
	}
	e.Pod = pod
	s := assignment{pod, e.Rank}
	switch e.Kind {
	case "pod":
		if _, ok := r.born[pod]; !ok { // the launcher may be restarted
			r.born[pod] = e.At()
		}
	case "rate":
		r.rates = append(r.rates, e)
	case "started":
		r.lives[s] = append(r.lives[s], &life{pod: pod, pid: e.PID, started: e.At()})
	case "imported", "joined", "restored", "step":
		if all := r.lives[s]; len(all) > 0 {
			all[len(all)-1].take(e)
		}
	default:
		r.others[e.Kind] = append(r.others[e.Kind], e.Seconds)
	}
}

func (l *life) take(e Event) {
	switch e.Kind {
	case "imported":
		l.imported = e.At()
	case "joined":
		l.joined = e.At()
	case "restored":
		l.restored, l.from, l.reached, l.loadMs = e.At(), e.Step, e.Reached, e.LoadMs
	case "step":
		e.Began = l.started
		l.steps = append(l.steps, e)
	}
}

// newest is the process of a rank that started last, in any pod; nil if there is none. The caller holds mu.
func (r *Record) newest(rank int) *life {
	var out *life
	for s, all := range r.lives {
		if l := all[len(all)-1]; s.rank == rank && (out == nil || l.started.After(out.started)) {
			out = l
		}
	}
	return out
}

// Resumption is how training resumed: each time is that of the last rank, zero while some rank lacks it.
type Resumption struct {
	Started, Imported, Joined, Restored, Stepped time.Time
	LoadMs                                       float64
	Recomputed                                   int64
}

// Resumed reports how training resumed, once every rank has finished a new step in a process that was started after the given time. A step
// is new if not all ranks had finished it before; in a plain script, which restarts at step 1, any step is new. A step joins all ranks, so
// the newest process of each rank counts, however many were started in between.
func (r *Record) Resumed(ranks int, after time.Time) (Resumption, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*life, ranks)
	floor, from := int64(math.MaxInt64), int64(math.MaxInt64)
	for rank := range all {
		l := r.newest(rank)
		if l == nil || l.started.Before(after) || l.joined.IsZero() { // only a plain script never restores
			return Resumption{}, false
		}
		all[rank] = l
		floor, from = min(floor, l.reached), min(from, l.from)
	}
	out := Resumption{Recomputed: max(0, floor-from)}
	for _, l := range all {
		first := slices.IndexFunc(l.steps, func(e Event) bool { return e.Step > floor })
		if first < 0 {
			return Resumption{}, false
		}
		out.Started, out.Imported = Later(out.Started, l.started), Later(out.Imported, l.imported)
		out.Joined, out.Restored = Later(out.Joined, l.joined), Later(out.Restored, l.restored)
		out.Stepped, out.LoadMs = Later(out.Stepped, l.steps[first].At()), max(out.LoadMs, l.loadMs)
	}
	return out, true
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Steps returns the steps of all processes, in order of time.
func (r *Record) Steps() (out []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.lives {
		for _, l := range all {
			out = append(out, l.steps...)
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return cmp.Compare(a.T, b.T) })
	return out
}

// Newest returns the newest process of a rank.
func (r *Record) Newest(rank int) (pod string, pid int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.newest(rank); l != nil {
		return l.pod, l.pid, true
	}
	return "", 0, false
}

// Progress describes in a few words how far the processes that started after a time have come.
func (r *Record) Progress(ranks int, after time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var counts [4]int
	for rank := range ranks {
		l := r.newest(rank)
		if l == nil || l.started.Before(after) {
			continue
		}
		for i, at := range []time.Time{l.started, l.imported, l.joined, l.restored} {
			if !at.IsZero() {
				counts[i]++
			}
		}
	}
	return fmt.Sprintf("of %d ranks %d started, %d imported, %d joined, %d restored", ranks, counts[0], counts[1], counts[2], counts[3])
}

// PodBorn is the time at which a pod's process printed its first line.
func (r *Record) PodBorn(pod string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.born[pod]
	return at, ok
}

// LastBorn is the latest PodBorn of all pods.
func (r *Record) LastBorn() (out time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.born {
		out = Later(out, at)
	}
	return out
}

// RateAfter returns the newest rate printed after a time: the time of a step, with pause and save.
func (r *Record) RateAfter(at time.Time) (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rates) == 0 || !r.rates[len(r.rates)-1].At().After(at) {
		return Event{}, false
	}
	return r.rates[len(r.rates)-1], true
}

// rateWindow is the time over which the script counts steps for one rate, with room for one slow step.
const rateWindow = 700 * time.Millisecond

// RatesBetween returns the rates whose window, which ends at the line's time, lies between two times.
func (r *Record) RatesBetween(from, to time.Time) (out []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.rates {
		if e.At().Add(-rateWindow).After(from) && e.At().Before(to) {
			out = append(out, e)
		}
	}
	return out
}

// Seconds returns the values of all lines of another kind.
func (r *Record) Seconds(kind string) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.others[kind])
}

// Tail returns the last lines that are no events.
func (r *Record) Tail(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.text[max(0, len(r.text)-n):])
}
