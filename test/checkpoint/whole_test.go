//go:build linux

package checkpoint

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/trainer"
)

var (
	begins = regexp.MustCompile(`rank 1 begins at step (\d+) as (\d+)`)
	lossAt = regexp.MustCompile(`(?m)^step (\d+) (\S+)$`)
)

// TestSpawnedProcessesAreRestarted: a script that starts its own processes is restarted when one of them is killed, resumes from its own
// checkpoint, and ends with the losses of an undisturbed run.
func TestSpawnedProcessesAreRestarted(t *testing.T) {
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("TORCH IS MISSING at %s (%v): a script with mp.spawn is NOT tested here", python, err)
	}
	script := trainer.File(t, trainer.Spawn)
	c := coordtest.Start(t)
	p := startPod(t, c, "pod-0", map[string]string{"HOLDFAST_LAUNCHER_TIMEOUT_SECONDS": "0", "HOLDFAST_GRACE_SECONDS": "5", "HOLDFAST_STANDBYS": "off"},
		python, script, t.TempDir(), freePort(t), "0.1")
	d := c.Lead("pod-0")
	was := p.awaitMatches(t, begins, 1)
	p.awaitMatches(t, lossAt, 10)
	pid, _ := strconv.Atoi(was[0][2])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Ended():
	case <-time.After(eventually.Timeout):
		t.Fatal("the script does not end")
	}
	if code := p.Code(); code != 0 || d.Restarts() != 1 {
		t.Errorf("exit code %d after %d restarts", code, d.Restarts())
	}
	last := begins.FindAllStringSubmatch(p.Out.String(), -1)
	if n := len(last); n != 2 || last[n-1][1] == "0" {
		t.Errorf("it began as %v", last)
	}
	plain, err := exec.Command(python, script, t.TempDir(), freePort(t), "0").Output()
	if err != nil {
		t.Fatalf("the undisturbed run: %v", err)
	}
	want := map[string]string{}
	for _, m := range lossAt.FindAllStringSubmatch(string(plain), -1) {
		want[m[1]] = m[2]
	}
	for _, m := range lossAt.FindAllStringSubmatch(p.Out.String(), -1) {
		if want[m[1]] != m[2] {
			t.Errorf("step %s: loss %s, undisturbed %s", m[1], m[2], want[m[1]])
		}
	}
	if len(want) == 0 || !strings.Contains(p.Out.String(), "trained") {
		t.Errorf("%d losses", len(want))
	}
}

// awaitMatches waits until the pod has written n matches.
func (p *pod) awaitMatches(t *testing.T, what *regexp.Regexp, n int) [][]string {
	t.Helper()
	var found [][]string
	eventually.Holds(t, fmt.Sprint(n, " matches of ", what), func() (bool, any) {
		found = what.FindAllStringSubmatch(p.Out.String(), -1)
		return len(found) >= n, found
	})
	return found
}

// freePort reserves a port until the test ends: rank 0 listens there long after it was chosen, and again after a restart.
func freePort(t *testing.T) string {
	t.Helper()
	p, err := proc.OfferPort(proc.Ports{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return fmt.Sprint(p.Number)
}
