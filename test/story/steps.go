package story

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// Loss is one line of a training script: a rank's loss at a step, as the printed bits.
type Loss struct {
	Step, Rank int64
	Bits       string
	Seen       time.Time
}

var lossLine = regexp.MustCompile(`step (\d+) rank (\d+) loss (-?0x[0-9a-fp.+-]+)`)

func parseLoss(line string) (Loss, bool) {
	m := lossLine.FindStringSubmatch(line)
	if m == nil {
		return Loss{}, false
	}
	step, _ := strconv.ParseInt(m[1], 10, 64)
	rank, _ := strconv.ParseInt(m[2], 10, 64)
	return Loss{Step: step, Rank: rank, Bits: m[3], Seen: time.Now()}, true
}

// Steps collects what the ranks of one job print, from any number of streams.
type Steps struct {
	mu     sync.Mutex
	all    []Loss
	newest map[int64]int64
	other  []string
}

// NewSteps returns an empty collection.
func NewSteps() *Steps { return &Steps{newest: map[int64]int64{}} }

// Read collects from one stream until it ends.
func (s *Steps) Read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.take(lines.Text())
	}
	return lines.Err()
}

func (s *Steps) take(line string) {
	loss, ok := parseLoss(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok {
		s.other = append(s.other, line)
		return
	}
	s.all = append(s.all, loss)
	s.newest[loss.Rank] = loss.Step
}

// Count is the number of losses printed so far.
func (s *Steps) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Lowest is the lowest of the ranks' last printed steps; 0 while some rank has printed none.
func (s *Steps) Lowest(ranks int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.newest) < ranks {
		return 0
	}
	low := int64(math.MaxInt64)
	for _, n := range s.newest {
		low = min(low, n)
	}
	return low
}

// Since returns the losses printed after the first n.
func (s *Steps) Since(n int) []Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Loss(nil), s.all[n:]...)
}

// LongestPause is the longest time without output, from the n-th loss until now.
func (s *Steps) LongestPause(n int) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := max(n, 1); i < len(s.all); i++ {
		longest = max(longest, s.all[i].Seen.Sub(s.all[i-1].Seen))
	}
	if len(s.all) > 0 {
		longest = max(longest, time.Since(s.all[len(s.all)-1].Seen))
	}
	return longest
}

// Tail returns the last lines that were not losses.
func (s *Steps) Tail(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.other[max(0, len(s.other)-n):]...)
}

// Compare compares every loss of one run, also those of recomputed steps, with the same rank and step of another.
func Compare(disturbed, undisturbed []Loss, restarts []int64) (Losses, error) {
	type key struct{ step, rank int64 }
	want := map[key]string{}
	for _, l := range undisturbed {
		want[key{l.Step, l.Rank}] = l.Bits
	}
	got := map[key]bool{}
	out := Losses{RestartedAt: restarts}
	var firstWrong *Loss
	for _, l := range disturbed {
		out.Compared++
		got[key{l.Step, l.Rank}] = true
		if want[key{l.Step, l.Rank}] == l.Bits {
			out.Equal++
		} else if firstWrong == nil {
			firstWrong = &l
		}
	}
	out.Disturbed, out.Undisturbed = series(disturbed), series(undisturbed)
	switch {
	case firstWrong != nil:
		return out, fmt.Errorf("step %d rank %d: loss %s, undisturbed %q: %d of %d losses are equal", firstWrong.Step, firstWrong.Rank,
			firstWrong.Bits, want[key{firstWrong.Step, firstWrong.Rank}], out.Equal, out.Compared)
	case len(got) != len(want):
		return out, fmt.Errorf("the disturbed run printed %d different losses, the undisturbed one %d", len(got), len(want))
	case len(got) == 0:
		return out, fmt.Errorf("no losses were printed, so nothing was compared")
	}
	return out, nil
}

// series is rank 0's loss by step; of a repeated step the last one counts.
func series(losses []Loss) []float64 {
	var out []float64
	for _, l := range losses {
		if l.Rank != 0 || l.Step < 1 {
			continue
		}
		v, err := strconv.ParseFloat(l.Bits, 64)
		if err != nil {
			continue
		}
		for int64(len(out)) < l.Step {
			out = append(out, v)
		}
		out[l.Step-1] = v
	}
	return out
}

// follow collects the output of one pod from the start of its container to its end.
func (w *World) follow(ctx context.Context, pod string, into *Steps) {
	go func() {
		for begun := false; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			err := w.Follow(ctx, Namespace, pod, Training, func(line string) { begun = true; into.take(line) })
			if err != nil && begun {
				w.Say("  reading the output of %s was cut: %v", pod, err)
			}
			if err == nil || begun {
				return
			}
		}
	}()
}
