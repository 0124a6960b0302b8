//go:build linux

package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
)

// python returns a command line that runs code.
func python(t *testing.T, code string) string {
	t.Helper()
	file, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH, and handlers of SIGTERM are played by it")
	}
	out, err := exec.Command(file, "-c", "import sys; print(sys.executable)").Output() // the python3 on PATH may be a wrapper
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(script, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)) + " -S " + script
}

// handler is a script that saves for a moment at SIGTERM, and ends. Its worker, a fork, would print a line if it received the signal too.
const handler = `
import os, signal, sys, time
out = sys.argv[1]
def note(what): open(out + "." + what, "w").close()
child = os.fork() if "worker" in sys.argv else 0
name = "worker" if "worker" in sys.argv and not child else "rank"
def asked(*_):
    note(name + "-asked")
    time.sleep(0.3)
    note(name + "-saved")
    os._exit(0)
signal.signal(signal.SIGTERM, asked)
note(name + "-ready")
while True: time.sleep(0.01)
`

// TestWhoIsAsked: a process that handles SIGTERM has time to save, in each form in which a rank is started. Its workers get no signal, and
// the agent does not wait for a rank without a handler.
func TestWhoIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		ready  []string
		saved  bool
	}{
		"a program":                  {"exec HANDLER OUT", []string{"rank"}, true},
		"below a shell":              {"HANDLER OUT; exit 1", []string{"rank"}, true},
		"below a shell, into a pipe": {"HANDLER OUT | cat; exit 1", []string{"rank"}, true},
		"with a worker":              {"exec HANDLER OUT worker", []string{"rank", "worker"}, true},
		"below another program":      {"HANDLER OUT & exec sleep 1000", []string{"rank"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			there := func(what string) bool { _, err := os.Stat(out + "." + what); return err == nil }
			rank := sh(t, strings.NewReplacer("HANDLER", python(t, handler), "OUT", out).Replace(c.script))
			eventually.Holds(t, "all processes are ready", func() (bool, any) {
				return !slices.ContainsFunc(c.ready, func(who string) bool { return !there(who + "-ready") }), c.ready
			})
			go rank.Wait(nil)
			began := time.Now()
			waited := EndAll(newMark(), []Process{rank}, nil, time.Hour)
			if there("rank-saved") != c.saved || slices.Contains(waited, rank.PID) != c.saved || there("worker-asked") {
				t.Errorf("saved: %v, waited for: %v; a worker was asked: %v", there("rank-saved"), waited, there("worker-asked"))
			}
			if took := time.Since(began); !c.saved && took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestAHandlerThatHangs: a handler that hangs is killed at the end of its time.
func TestAHandlerThatHangs(t *testing.T) {
	ready, grace := filepath.Join(t.TempDir(), "ready"), 300*time.Millisecond
	rank := sh(t, "trap : TERM; touch "+ready+"; while :; do sleep 1; done")
	eventually.Holds(t, "the rank is there", func() (bool, any) { _, err := os.Stat(ready); return err == nil, err })
	go rank.Wait(nil)
	began := time.Now()
	EndAll(newMark(), []Process{rank}, nil, grace)
	if took := time.Since(began); took < grace || rank.Alive() {
		t.Errorf("after %s: alive %v", took, rank.Alive())
	}
}

// TestTrackersRemoveWhatTheyTrack: a killed rank leaves its segments to Python's resource tracker, which removes them after the rank's end.
func TestTrackersRemoveWhatTheyTrack(t *testing.T) {
	name := fmt.Sprintf("holdfast-test-%d", time.Now().UnixNano())
	out := filepath.Join(t.TempDir(), "out")
	rank := sh(t, "exec "+python(t, `
import sys, time
from multiprocessing import shared_memory
made = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=4096)
open(sys.argv[2] + ".made", "w").close()
time.sleep(1000)
`)+" "+name+" "+out)
	eventually.Holds(t, "the segment is made", func() (bool, any) { _, err := os.Stat(out + ".made"); return err == nil, err })
	go rank.Wait(nil)
	EndAll(newMark(), []Process{rank}, nil, 0)
	if _, err := os.Stat("/dev/shm/" + name); err == nil {
		t.Error("the segment is left")
		os.Remove("/dev/shm/" + name)
	}
}

// TestALauncherThatPassedTheHookBy: a launcher that did not run the site hook is found by its command line.
func TestALauncherThatPassedTheHookBy(t *testing.T) {
	for _, form := range []string{"-m torch.distributed.run", "./torchrun"} { // as arguments of a shell, these are also a flag and a script
		dir := t.TempDir()
		ready := filepath.Join(dir, "ready")
		for _, name := range []string{"torch.distributed.run", "torchrun"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("touch "+ready+"; sleep 99; :"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := sh(t, "cd "+dir+"; exec bash -c 'exec -a python3 bash "+form+" train.py'")
		eventually.Holds(t, "it runs", func() (bool, any) { _, err := os.Stat(ready); return err == nil && p.Alive(), err })
		if got, want := PassedBy(), "python3 "+form+" train.py"; got != want {
			t.Errorf("found %q, want %q", got, want)
		}
		p.Kill()
		eventually.Holds(t, "it has ended", func() (bool, any) { return !p.Alive(), nil })
	}
}
