//go:build linux

// Package background runs functions on threads that give way to training. A thread of Lowest has the lowest priority,
// nice 19, and still takes one to two percent of a core from a thread that needs it. A thread of Idle has the policy
// SCHED_IDLE: it takes 0.3 percent, and any other thread of the container that becomes runnable takes its core at once.
// So work on it uses cores that are free, and its caller must have another way if none is for long.
//
// A thread that loses its core in a system call holds up nothing else. One that loses it while it computes keeps its
// place among the GOMAXPROCS threads that run Go code, and a collection of garbage stops the whole process until that
// thread runs again: while no core is free, within its 0.3 percent. So work of Idle should be mostly reading and writing.
package background

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// lowest is the lowest priority of a thread.
const lowest = 19

// bestEffortLowest is the lowest I/O priority of class best effort; the policy SCHED_IDLE alone would mean class idle, which storage may
// serve never.
const (
	ioprioThread     = 1
	bestEffortLowest = 2<<13 | 7
)

// pool is idle threads of one kind. They never end: without privilege a thread cannot raise its priority again, so they have no other use;
// and a child that gets a signal at its parent's death gets it when the thread that started it ends.
type pool struct {
	enter func()

	mu   sync.Mutex
	idle []chan func()
}

var (
	lowestThreads = pool{enter: func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, lowest) }}
	idleThreads   = pool{enter: func() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, lowest) // if the policy is refused
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioThread, 0, bestEffortLowest)
	}}
)

// Lowest runs do, and the processes that it starts, on a thread of lowest priority.
func Lowest(do func() error) error { return lowestThreads.run(do) }

// Idle runs do on a thread that uses only free cores. Where GOMAXPROCS is 1 such a thread would hold up the whole process whenever it loses
// its core, so do runs on the caller's thread.
func Idle(do func() error) error {
	if runtime.GOMAXPROCS(0) == 1 {
		return do()
	}
	return idleThreads.run(do)
}

func (p *pool) run(do func() error) (err error) {
	p.mu.Lock()
	var thread chan func()
	if n := len(p.idle); n > 0 {
		thread = p.idle[n-1]
		p.idle = p.idle[:n-1]
	} else {
		thread = make(chan func())
		go p.serve(thread)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	thread <- func() {
		defer close(done)
		err = do()
	}
	<-done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, thread)
	return err
}

func (p *pool) serve(work <-chan func()) {
	runtime.LockOSThread()
	p.enter()
	for do := range work {
		do()
	}
}
