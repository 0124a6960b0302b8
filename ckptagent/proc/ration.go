//go:build linux

package proc

import (
	"syscall"
	"time"
)

// ration limits the CPU time of a source that imports: its process group is stopped when it has used its share, and continued when it has
// more.
type ration struct {
	pid     int
	stopped bool
	// credit is the time that it may use; used is its CPU time at the last check.
	credit, used time.Duration
	looked       time.Time
}

// begin starts a ration without credit.
func (r *ration) begin(now time.Time) {
	if used, err := cpuTime(r.pid); err == nil {
		r.used = used
	}
	r.credit, r.looked = 0, now
}

func (r *ration) stop() {
	r.stopped = true
	_ = syscall.Kill(-r.pid, syscall.SIGSTOP)
}

func (r *ration) resume() {
	r.stopped = false
	_ = syscall.Kill(-r.pid, syscall.SIGCONT)
}

// duty stops or continues the source by a share of a processor. duty returns the CPU time used since the last check.
func (r *ration) duty(now time.Time, share float64) time.Duration {
	used, err := cpuTime(r.pid)
	if err != nil {
		return 0 // it has ended; reap handles that
	}
	spent := used - r.used
	r.credit += time.Duration(share*float64(now.Sub(r.looked))) - spent
	r.credit = min(r.credit, warmBurst)
	r.used, r.looked = used, now
	switch {
	case r.credit < 0 && !r.stopped:
		r.stop()
	case r.credit > 0 && (r.stopped || spent == 0):
		// Repeated while it makes no progress: a stop during a fork can outlast its end in the child, which only the agent can continue
		// until the child has left the group.
		r.resume()
	}
	return spent
}

// pause stops the source while a generation ends or starts.
func (r *ration) pause(now time.Time) {
	if !r.stopped {
		r.stop()
	}
	r.looked, r.credit = now, 0
}

// goOn continues the source: it may import at full speed, or has imported.
func (r *ration) goOn(now time.Time, imports bool) {
	used, err := cpuTime(r.pid)
	idle := err == nil && used == r.used // see duty
	r.used, r.looked = max(r.used, used), now
	if r.stopped || imports && idle {
		r.resume()
	}
}
