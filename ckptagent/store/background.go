//go:build linux

package store

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// lowest is the lowest priority of a thread.
const lowest = 19

// background are idle threads of lowest priority. They never end: without privilege a thread cannot raise its priority again, so they have
// no other use; and a child that gets a signal at its parent's death gets it when the thread that started it ends.
var background struct {
	sync.Mutex
	idle []chan func()
}

// InBackground runs do, and the processes that it starts, on a thread of lowest priority, so that a copy to storage never delays a step.
func InBackground(do func() error) (err error) {
	background.Lock()
	var thread chan func()
	if n := len(background.idle); n > 0 {
		thread = background.idle[n-1]
		background.idle = background.idle[:n-1]
	} else {
		thread = make(chan func())
		go serve(thread)
	}
	background.Unlock()
	done := make(chan struct{})
	thread <- func() {
		defer close(done)
		err = do()
	}
	<-done
	background.Lock()
	defer background.Unlock()
	background.idle = append(background.idle, thread)
	return err
}

func serve(work <-chan func()) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, lowest)
	for do := range work {
		do()
	}
}
