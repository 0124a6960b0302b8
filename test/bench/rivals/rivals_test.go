package rivals

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestEndsAllProcesses: also those that a launcher put into a session of their own.
func TestEndsAllProcesses(t *testing.T) {
	folder := t.TempDir()
	inner := exec.Command("sleep", "60")
	inner.Env = append(os.Environ(), mark+folder)
	inner.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := inner.Start(); err != nil {
		t.Fatal(err)
	}
	endAll(folder)
	if err := inner.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
}
