package rivals

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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

// TestApart: a program has a folder of its own in place of another one, which stays as it is.
func TestApart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	work, shared := t.TempDir(), filepath.Join(t.TempDir(), "shared")
	lines := make(chan string, 9)
	argv := Apart("own", shared, "sh", "-c", "echo x >"+shared+"/file && echo done")
	stop, err := Start(Home, argv, nil, work, func(text string, _ time.Time) { lines <- text })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if got := <-lines; got != "done" {
		t.Fatalf("it says %q", got)
	}
	_, inOwn := os.Stat(filepath.Join(work, "own", "file"))
	_, inShared := os.Stat(filepath.Join(shared, "file"))
	if inOwn != nil || inShared == nil {
		t.Errorf("in its own folder: %v, in the shared one: %v", inOwn, inShared)
	}
}
