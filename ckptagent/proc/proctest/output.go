//go:build linux

package proctest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
)

// Output collects what a container writes, as the kubelet would.
type Output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{}
}

func newOutput() *Output { return &Output{changed: make(chan struct{})} }

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Await waits until the output contains all of the texts.
func (o *Output) Await(t testing.TB, texts ...string) {
	t.Helper()
	o.Until(t, func(have string) (missing string) {
		for _, text := range texts {
			if !strings.Contains(have, text) {
				missing = text
			}
		}
		return missing
	})
}

// Lines waits until there are n complete lines, and returns them.
func (o *Output) Lines(t testing.TB, n int) []string {
	t.Helper()
	var all []string
	o.Until(t, func(have string) (missing string) {
		all = strings.Split(have, "\n")
		if all = all[:len(all)-1]; len(all) < n {
			missing = fmt.Sprintf("line %d", n)
		}
		return missing
	})
	return all
}

// Until waits until lacks returns "".
func (o *Output) Until(t testing.TB, lacks func(have string) (missing string)) {
	t.Helper()
	deadline := time.After(eventually.Timeout)
	for {
		o.mu.Lock()
		have, changed := o.buf.String(), o.changed
		o.mu.Unlock()
		missing := lacks(have)
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no %q in the output within %s:\n%s", missing, eventually.Timeout, have)
		}
	}
}

// tail returns the end of the output, for a failure message.
func (o *Output) tail() string {
	all := o.String()
	return all[max(0, len(all)-6000):]
}

// Stretch is the number of consecutive saves that FewestSkipped counts.
const Stretch = 30

// FewestSkipped returns how few saves were skipped in the best stretch of a log, and how many were saved and skipped in all. Each line of
// the log with the word "saved" or "skipped" is one save. A busy machine causes bad stretches; an agent that blocks saves leaves no good
// one.
func FewestSkipped(log string) (fewest, saved, skipped int) {
	var made []bool
	for line := range strings.Lines(log) {
		for word := range strings.FieldsSeq(line) {
			switch word {
			case "saved":
				made, saved = append(made, true), saved+1
			case "skipped":
				made, skipped = append(made, false), skipped+1
			}
		}
	}
	fewest = Stretch
	for i := range made[:max(0, len(made)-Stretch+1)] {
		missed := 0
		for _, ok := range made[i : i+Stretch] {
			if !ok {
				missed++
			}
		}
		fewest = min(fewest, missed)
	}
	return fewest, saved, skipped
}
