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

// TestBrokenOffDemo kills the demo while it plays, then plays it again and presses Ctrl-C twice: the second one begins whatever the
// first one left; it says what it was told, writes no page, and leaves nothing.
func TestBrokenOffDemo(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: end-to-end tests need Linux and root")
	}
	t.Parallel()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "demo.html")
	const begun = "Holdfast is installed by the manifests" // the first chapter's title
	if said, err := broken(t, source, page, map[string]os.Signal{begun: os.Kill}); exitCode(err) != -1 || !strings.Contains(said, begun) {
		t.Fatalf("a demo that was killed ended with %v:\n%s", err, said)
	}
	said, err := broken(t, source, page, map[string]os.Signal{begun: os.Interrupt, "taking the cluster down": os.Interrupt})
	if exitCode(err) != 128+int(syscall.SIGINT) {
		t.Errorf("the demo ended with %v, want code 130:\n%s", err, said)
	}
	if !strings.Contains(said, "no page was written") {
		t.Errorf("it does not say that there is no page:\n%s", said)
	}
	for _, path := range []string{page, filepath.Join(host.DefaultBase, "demo")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
}

// broken plays the demo and sends it a signal at each line that has the words, and returns what it said and how it ended.
func broken(t *testing.T, source, page string, at map[string]os.Signal) (string, error) {
	t.Helper()
	relative, err := filepath.Rel(source, page)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(source, "bin/holdfast-demo"), "--source", source, "--page", relative)
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

// exitCode is that of a process that ended by itself; -1: a signal ended it; 0: it ended well.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}
