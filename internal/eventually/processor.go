//go:build unix

package eventually

import (
	"syscall"
	"testing"
	"time"
)

// ProcessorTime is what this process has used of processors so far: what a test promises of its own work is judged by it, as a busy
// machine stretches the time of day more.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
