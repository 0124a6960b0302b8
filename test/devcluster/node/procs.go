package node

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// procs starts the node's programs and reaps every process that ends in the
// node, as process 1 must: containerd's shims become its children.
type procs struct {
	mu sync.Mutex
	// guarded by mu: which channel waits for which child
	waiting map[int]chan syscall.WaitStatus
}

func newProcs() *procs {
	p := &procs{waiting: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 16)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			p.reap()
		}
	}()
	return p
}

func (p *procs) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		if ch, ok := p.waiting[pid]; ok {
			ch <- ws
			delete(p.waiting, pid)
		}
	}
}

// start runs path with args (args[0] is its name); the channel receives its wait status.
func (p *procs) start(path string, args []string, log *os.File) (int, <-chan syscall.WaitStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{devNull.Fd(), log.Fd(), log.Fd()},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	ch := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = ch
	return pid, ch, nil
}

// run runs a program to its end.
func (p *procs) run(path string, args []string, log *os.File) error {
	_, done, err := p.start(path, args, log)
	if err != nil {
		return err
	}
	if ws := <-done; ws.ExitStatus() != 0 {
		return fmt.Errorf("%s ended with %s", args[0], describe(ws))
	}
	return nil
}

// keep runs a program for as long as the node runs and restarts it when it ends, unless held() reports a hold file.
func (p *procs) keep(path string, args []string, log *os.File, held func() bool) {
	const pause, look = time.Second, 100 * time.Millisecond
	for {
		for held() {
			time.Sleep(look)
		}
		fmt.Fprintf(log, "node: starting %s\n", args[0])
		pid, done, err := p.start(path, args, log)
		if err != nil {
			fmt.Fprintln(log, "node:", err)
		} else {
			if held() { // checked again: a caller may have placed the hold file and looked for the process before it started
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			fmt.Fprintf(log, "node: %s ended with %s\n", args[0], describe(<-done))
		}
		time.Sleep(pause)
	}
}

func describe(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + ws.Signal().String()
	}
	return fmt.Sprintf("code %d", ws.ExitStatus())
}

var devNull = func() *os.File {
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		panic(err) // every system has it
	}
	return f
}()
