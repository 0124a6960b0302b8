//go:build linux

package loop_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// A standby that becomes the rank writes where one that is started cold writes.
func TestStandbyWritesWhereTheLauncherSays(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", `
import os, sys, subprocess, holdfast
ck = holdfast.attach()
ck.restore()
n = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("out", n, flush=True)
print("err", n, file=sys.stderr)
subprocess.run(["sh", "-c", "echo child $0", n])
assert "HOLDFAST_STDOUT" not in os.environ and "HOLDFAST_STDERR" not in os.environ
import time
step = 0
while True:
    step += 1
    ck.step(step)
    time.sleep(0.02)
`)
	c.Lead("a")
	p.Start("torchrun", "--log-dir=logs", "--role=r", "--tee=1", "--redirects=2", "train.py")
	first := c.Await(t, "a", "has a standby", func(r *v1.Report) bool { return len(r.Rank) == 1 && r.Rank[0].StandbyReady })
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	if second := c.Await(t, "a", "runs generation 2", runs(2, 1)); !second.Rank[0].FromStandby {
		t.Fatalf("generation 2 was started cold: %v", second.Rank[0])
	}
	p.Out.Await(t, "[r0]:out 0\n", "[r0]:child 0\n", "[r0]:out 1\n", "[r0]:child 1\n")
	for name, want := range map[string]string{
		"attempt_0/0/stdout.log": "out 0\nchild 0\n", "attempt_0/0/stderr.log": "err 0\n", "attempt_1/0/stdout.log": "out 1\nchild 1\n", "attempt_1/0/stderr.log": "err 1\n",
	} {
		files, _ := filepath.Glob(filepath.Join(p.Dir, "logs", "none_*", name))
		if len(files) != 1 {
			t.Errorf("%s: %v", name, files)
			continue
		}
		if raw, err := os.ReadFile(files[0]); err != nil || !strings.HasSuffix(string(raw), want) ||
			strings.Count(string(raw), "0\n")+strings.Count(string(raw), "1\n") != strings.Count(want, "\n") {
			t.Errorf("%s holds %q, %v; want %q", name, raw, err, want)
		}
	}
	if strings.Contains(p.Errs.String(), "err ") {
		t.Errorf("standard error was not redirected: %s", p.Errs)
	}
}
