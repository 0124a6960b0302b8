//go:build unix

package eventually

import (
	"syscall"
	"testing"
	"time"
)

// ProcessorTime returns the CPU time of this process so far. Tests bound their own work by it, because wall time also grows with the
// machine's load.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
