//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestWaitLeavesTheDeadToInit: a thread that is blocked in wait(2) when its process is killed may still reap the rank. Then the rank's exit
// status would be lost. So the agent does not block in wait(2).
func TestWaitLeavesTheDeadToInit(t *testing.T) {
	if _, err := os.ReadFile("/proc/self/syscall"); err != nil {
		t.Skipf("SKIPPED: this kernel does not show what threads sleep in: %v", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := start(command{file: "/bin/sleep", argv: []string{"sleep", "1000"}, files: [3]*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan protocol.Exit, 1)
	go func() { ended <- p.Wait(nil) }()
	deadline := time.Now().Add(2 * time.Minute)
	for sleeping := false; !sleeping; {
		if time.Now().After(deadline) {
			t.Fatal("no thread waits for the process")
		}
		for _, call := range sleepsIn(t) {
			switch call {
			case unix.SYS_WAIT4, unix.SYS_WAITID:
				t.Error("Wait sleeps in wait(2)")
				sleeping = true
			case unix.SYS_PPOLL, 7: // poll(2), on architectures that have it
				sleeping = true
			}
		}
	}
	_ = unix.Kill(p.PID, unix.SIGTERM)
	if end := <-ended; end.Signal != 15 || end.Code != 143 {
		t.Errorf("ended %+v", end)
	}
}

// sleepsIn lists the system calls in which threads of this process sleep.
func sleepsIn(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/syscall")
	if err != nil {
		t.Fatal(err)
	}
	var calls []int
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		number, _, _ := strings.Cut(string(raw), " ")
		if n, err := strconv.Atoi(number); err == nil {
			calls = append(calls, n)
		}
	}
	return calls
}
