//go:build linux

package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/eventually"
)

// signalDifferences are the allowed differences after a signal to the launcher.
var signalDifferences = []allowance{
	{is(`SIG(TERM|INT)\.code`), is(`143|130`), "128 plus the signal, as in a shell; torchrun's is 1 for all"},
	{is(`SIGINT\.rank-\d`), is(`ready SIGTERM ends`), "ranks are asked to end by SIGTERM, whichever signal the launcher had"},
}

// signalCommand prints the launcher's process id and its exit code.
func signalCommand(t *testing.T, folder string) []string {
	return []string{"bash", "-c", `bash -c 'echo "launcher $$"; exec "$@"' bash "$@"; echo "after $?"`, "bash",
		"torchrun", "--standalone", "--nproc-per-node=2", script(t, "signals.py"), folder}
}

// signalled sends the launcher a signal once both ranks can record it.
func signalled(t *testing.T, folder string, sig syscall.Signal, said func() string) {
	t.Helper()
	eventually.Holds(t, "both ranks are ready", func() (bool, any) {
		reported := rankSignals(folder)
		return reported[0] != "" && reported[1] != "", reported
	})
	launcher := 0
	if _, err := fmt.Sscanf(said(), "launcher %d", &launcher); err != nil {
		t.Fatalf("the launcher's process id was not printed: %q", said())
	}
	if err := syscall.Kill(launcher, sig); err != nil {
		t.Fatal(err)
	}
}

// rankSignals is what each rank has written.
func rankSignals(folder string) (reported [2]string) {
	for rank := range reported {
		raw, _ := os.ReadFile(filepath.Join(folder, fmt.Sprintf("signals-%d", rank)))
		reported[rank] = strings.Join(strings.Fields(string(raw)), " ")
	}
	return reported
}

// signalFacts are the launcher's exit code and the ranks' records.
func signalFacts(t *testing.T, folder string, sig syscall.Signal, said string) facts {
	t.Helper()
	_, after, found := strings.Cut(said, "after ")
	if !found {
		t.Fatalf("the launcher did not return: %q", said)
	}
	reported, name := rankSignals(folder), unix.SignalName(sig)
	return facts{name + ".code": strings.TrimSpace(after), name + ".rank-0": reported[0], name + ".rank-1": reported[1]}
}

func signalUnderTorchrun(t *testing.T, sig syscall.Signal) facts {
	t.Helper()
	folder := t.TempDir()
	argv := signalCommand(t, folder)
	cmd := exec.Command(argv[0], argv[1:]...)
	for name, v := range environment(folder, python(t)) {
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	out := filepath.Join(folder, "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	said := func() string {
		raw, _ := os.ReadFile(out)
		return string(raw)
	}
	cmd.Stdout = f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	signalled(t, folder, sig, said)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return signalFacts(t, folder, sig, said())
}

func signalUnderAgent(t *testing.T, sig syscall.Signal) facts {
	t.Helper()
	folder := t.TempDir()
	_, p := newAgent(t, folder, "off")
	p.Start(signalCommand(t, folder)...)
	signalled(t, folder, sig, p.Out.String)
	p.Wait()
	return signalFacts(t, folder, sig, p.Out.String())
}

// TestSignals: a signal that ends the launcher reaches each rank once, the rank can end by itself, the launcher returns, and the
// container's command continues after it.
func TestSignals(t *testing.T) {
	python(t)
	var mu sync.Mutex
	used := map[string]bool{}
	t.Run("all", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			t.Run(unix.SignalName(sig), func(t *testing.T) {
				t.Parallel()
				theirs := signalUnderTorchrun(t, sig)
				if want := "ready " + unix.SignalName(sig) + " ends"; theirs[unix.SignalName(sig)+".rank-0"] != want {
					t.Fatalf("under torchrun %v, want %q", theirs, want)
				}
				ours := signalUnderAgent(t, sig)
				mu.Lock()
				defer mu.Unlock()
				for _, d := range compare(ours, theirs, signalDifferences, used) {
					t.Error(d)
				}
			})
		}
	})
	for _, d := range signalDifferences {
		if !used[d.path.String()] && asIs() {
			t.Errorf("%s (%s) is no longer a difference", d.path, d.reason)
		}
	}
}
