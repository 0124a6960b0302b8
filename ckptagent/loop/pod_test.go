//go:build linux

package loop_test

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// newPod returns a pod of the coordinator's gang; without a coordinator it is in no gang.
func newPod(t testing.TB, c *coordtest.Coordinator, name string) *proctest.Container {
	t.Helper()
	p := proctest.New(t, name)
	p.Env["PATH"], p.Env["HOME"], p.Env["HOLDFAST_STANDBYS"] = pythonDir()+os.Getenv("PATH"), os.Getenv("HOME"), "off"
	if c != nil {
		p.Coordinator(c.Address(), c.CA)
	}
	return p
}

// pythonDir is the folder of the interpreter itself, followed by a colon. The python3 on PATH may be a wrapper.
var pythonDir = sync.OnceValue(func() string {
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.dirname(sys.executable))").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out)) + ":"
})

func needPython(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH, and ranks are Python processes")
	}
}

func kill(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("sending signal %d to %d: that is no process of a pod", sig, pid)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("sending signal %d to %d: %v", sig, pid, err)
	}
}
