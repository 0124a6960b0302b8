//go:build linux

package background

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nice returns the priority of the calling thread, as the program nice counts it.
func nice(t *testing.T) int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	return 20 - raw // the system call returns 20 minus the value
}

func threads(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestLowest: the function and the processes that it starts have the lowest priority. No other thread has.
func TestLowest(t *testing.T) {
	before := nice(t)
	failed := errors.New("failed")
	err := Lowest(func() error {
		if got := nice(t); got != lowest {
			t.Errorf("in the background nice is %d, want %d", got, lowest)
		}
		said, err := exec.Command("nice").Output()
		if got := strings.TrimSpace(string(said)); err != nil || got != "19" {
			t.Errorf("what is started there says nice is %q, %v", got, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("the error is %v, want %v", err, failed)
	}
	if got := nice(t); got != before {
		t.Errorf("nice of the caller is %d, was %d", got, before)
	}
	most := threads(t) + 20 // the runtime starts threads of its own, more of them on a busy machine
	for range 50 {
		_ = Lowest(func() error { return nil })
	}
	if n := threads(t); n > most {
		t.Errorf("%d threads after 50 calls one after the other, want at most %d", n, most)
	}
	mortal := exec.Command("sleep", "60")
	// the kernel sends it when the thread that starts the process ends
	mortal.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := Lowest(mortal.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mortal.Wait() }()
	for range 50 {
		_ = Lowest(func() error { return nil })
	}
	select {
	case err := <-ended:
		t.Errorf("a child ended with the thread that started it: %v", err)
	case <-time.After(100 * time.Millisecond):
		_ = mortal.Process.Kill()
		<-ended
	}
}

// TestIdle: the function runs with the policy SCHED_IDLE and no other thread does, and its I/O does not have class idle. Where only one
// thread runs Go code, the caller's runs the function.
func TestIdle(t *testing.T) {
	policy := func() uint32 {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return attr.Policy
	}
	before := policy()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for range 3 {
		_ = Idle(func() error {
			if got := policy(); got != unix.SCHED_IDLE {
				t.Errorf("policy %d, want %d", got, unix.SCHED_IDLE)
			}
			if io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioThread, 0, 0); errno != 0 || io != bestEffortLowest {
				t.Errorf("I/O priority %x: %v, want %x", io, errno, bestEffortLowest)
			}
			return nil
		})
	}
	if got := policy(); got != before {
		t.Errorf("policy of the caller %d, was %d", got, before)
	}
	runtime.GOMAXPROCS(1)
	_ = Idle(func() error {
		if got := policy(); got != before {
			t.Errorf("policy %d where one thread runs Go code, want %d", got, before)
		}
		return nil
	})
}
