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

	corev1 "k8s.io/api/core/v1"
)

// Loss is one line of a training script: what a rank lost at a step, as the bits that it printed.
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
		loss, ok := parseLoss(lines.Text())
		s.mu.Lock()
		if ok {
			s.all = append(s.all, loss)
			s.newest[loss.Rank] = loss.Step
		} else {
			s.other = append(s.other, lines.Text())
		}
		s.mu.Unlock()
	}
	return lines.Err()
}

// Count is how many losses were printed so far.
func (s *Steps) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Lowest is the lowest, over all ranks, of the step that each printed last; 0 while fewer than ranks have printed.
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

// Tail returns the last lines that were not losses.
func (s *Steps) Tail(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.other[max(0, len(s.other)-n):]...)
}

// Compare holds every loss of one run, also those of recomputed steps, against the same rank and step of another.
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

// series is rank 0's loss by step; where a step was done again the last one counts.
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

// follow collects the output of one pod until the container ends.
func (w *World) follow(ctx context.Context, namespace, pod, container string, into *Steps) {
	go func() {
		var since *int64
		for ctx.Err() == nil {
			r, err := w.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, Follow: true, SinceSeconds: since}).Stream(ctx)
			if err == nil {
				err = into.Read(r)
				r.Close()
				if err == nil {
					return
				}
				w.Say("  reading the output of %s was cut: %v", pod, err)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}
