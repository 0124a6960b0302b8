//go:build linux

package proc

import (
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PokeFD is the read end of init's pipe in the agent.
const PokeFD = 3

// Exits reads init's records of how orphans ended.
type Exits struct {
	path string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each poke
}

// NewExits follows the exits file of root; poke is the pipe that init writes to (nil: read only once).
func NewExits(root Root, poke *os.File) *Exits {
	e := &Exits{path: root.ExitsFile(), changed: make(chan struct{})}
	if poke != nil {
		go e.follow(poke)
	}
	return e
}

func (e *Exits) follow(poke *os.File) {
	buf := make([]byte, 256)
	for {
		if _, err := poke.Read(buf); err != nil {
			return
		}
		e.mu.Lock()
		close(e.changed)
		e.changed = make(chan struct{})
		e.mu.Unlock()
	}
}

// Wait returns the wait status of an orphan that was alive at since, waiting up to timeout for init's record. ok is false if there is no
// record: the process was not init's child.
func (e *Exits) Wait(pid int, since time.Time, timeout time.Duration) (ws syscall.WaitStatus, at time.Time, ok bool) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		if ws, at, ok = e.find(pid, since); ok {
			return ws, at, true
		}
		select {
		case <-changed:
		case <-deadline.C:
			return 0, time.Time{}, false
		}
	}
}

// Leaving returns the newest signal by which the kubelet ends the pod; ok is false if there was none.
func (e *Exits) Leaving() (sig int, ok bool) {
	ws, _, ok := e.find(leavingPID, time.Time{})
	return int(ws), ok
}

func (e *Exits) find(pid int, since time.Time) (ws syscall.WaitStatus, at time.Time, ok bool) {
	raw, err := os.ReadFile(e.path)
	if err != nil {
		return 0, time.Time{}, false
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) != 3 || atoi(f[0]) != pid {
			continue
		}
		if t := time.Unix(0, int64(atoi(f[2]))); !t.Before(since) {
			ws, at, ok = syscall.WaitStatus(atoi(f[1])), t, true
		}
	}
	return ws, at, ok
}
