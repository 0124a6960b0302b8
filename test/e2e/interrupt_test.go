package e2e

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/devcluster/host"
)

// TestInterruptedDemo presses Ctrl-C twice while the demo plays: it says so, writes no page, and leaves nothing.
func TestInterruptedDemo(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: end-to-end tests need Linux and root")
	}
	t.Parallel()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	demo, page := filepath.Join(source, "bin/holdfast-demo"), filepath.Join(t.TempDir(), "demo.html")
	relative, err := filepath.Rel(source, page)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(demo, "--source", source, "--page", relative)
	output, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; build it with: make holdfast-demo", err)
	}
	stuck := time.AfterFunc(4*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	interrupt := func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
	}
	var said []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said = append(said, lines.Text())
		switch {
		case strings.Contains(lines.Text(), "Holdfast is installed by the manifests"): // the first chapter begins
			interrupt()
		case strings.Contains(lines.Text(), "taking the cluster down"):
			interrupt()
		}
	}
	all := strings.Join(said, "\n")
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("the demo ended with %v, want code 130:\n%s", err, all)
	}
	if !strings.Contains(all, "no page was written") {
		t.Errorf("it does not say that there is no page:\n%s", all)
	}
	for _, path := range []string{page, filepath.Join(host.DefaultBase, "demo")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
}
