//go:build linux

package proctest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
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

// Await waits until the output holds all of the texts.
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

// Lines waits until there are so many whole ones, and returns them.
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

// Until waits until nothing is missing.
func (o *Output) Until(t testing.TB, lacks func(have string) (missing string)) {
	t.Helper()
	deadline := time.After(patience)
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
			t.Fatalf("no %q in the output within %s:\n%s", missing, patience, have)
		}
	}
}

// tail is the end of it, for people.
func (o *Output) tail() string {
	all := o.String()
	return all[max(0, len(all)-6000):]
}
