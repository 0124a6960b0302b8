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

// TestDemo runs the demo from its command line, one run at a time.
func TestDemo(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: end-to-end tests need Linux and root")
	}
	t.Parallel()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("BrokenOff", func(t *testing.T) { testBrokenOff(t, source) })
	t.Run("DefaultScheduler", func(t *testing.T) { testDefaultScheduler(t, source) })
}

// testBrokenOff kills a running demo, then runs it again and presses Ctrl-C twice: the second run starts whatever the first one left; it
// reports the signal, writes no page, and leaves nothing.
func testBrokenOff(t *testing.T, source string) {
	page := filepath.Join(t.TempDir(), "demo.html")
	const begun = "Holdfast is installed by the manifests" // the first chapter's title
	if said, err := demo(t, source, page, map[string]os.Signal{begun: os.Kill}); exitCode(err) != -1 || !strings.Contains(said, begun) {
		t.Fatalf("a demo that was killed ended with %v:\n%s", err, said)
	}
	said, err := demo(t, source, page, map[string]os.Signal{begun: os.Interrupt, "taking the cluster down": os.Interrupt})
	if exitCode(err) != 128+int(syscall.SIGINT) {
		t.Errorf("the demo ended with %v, want code 130:\n%s", err, said)
	}
	if !strings.Contains(said, "no page was written") {
		t.Errorf("it does not say that there is no page:\n%s", said)
	}
	left(t, page)
}

// testDefaultScheduler runs the demo with the stock scheduler and the same job: it succeeds once it has seen the job half placed.
func testDefaultScheduler(t *testing.T, source string) {
	page := filepath.Join(t.TempDir(), "demo.html")
	if said, err := demo(t, source, page, nil, "--run", "somebody-else"); exitCode(err) != 1 || !strings.Contains(said, "use holdfast, fewer or default-scheduler") {
		t.Errorf("another scheduler is not refused: %v:\n%s", err, said)
	}
	said, err := demo(t, source, page, nil, "--run", "default-scheduler")
	if err != nil || !strings.Contains(said, "half placed for 10 s") {
		t.Errorf("the demo ended with %v:\n%s", err, said)
	}
	left(t, page)
}

// left fails if a demo left a page or its cluster.
func left(t *testing.T, page string) {
	t.Helper()
	for _, path := range []string{page, filepath.Join(host.DefaultBase, "demo")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
}

// demo runs the demo and sends it a signal at each line with the given words; it returns the output and the error.
func demo(t *testing.T, source, page string, at map[string]os.Signal, args ...string) (string, error) {
	t.Helper()
	relative, err := filepath.Rel(source, page)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(source, "bin/holdfast-demo"), append([]string{"--source", source, "--page", relative}, args...)...)
	output, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; build it with: make holdfast-demo", err)
	}
	stuck := time.AfterFunc(4*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	var said []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said = append(said, lines.Text())
		for words, signal := range at {
			if !strings.Contains(lines.Text(), words) {
				continue
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
		}
	}
	return strings.Join(said, "\n"), cmd.Wait()
}

// exitCode is the exit code of a process; -1: a signal ended it.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}
