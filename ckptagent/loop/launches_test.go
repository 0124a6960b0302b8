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
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

// preparing is a script that saves steps of its own state and prints that it ran.
const preparing = `
import array, os, sys, holdfast
state = array.array("Q", [7] * 4096)
class Thing:
    def state_dict(self): return {"state": state}
    def load_state_dict(self, d): raise ValueError("another launcher's state")
ck = holdfast.attach()
ck.track(thing=Thing())
start = ck.restore()
for step in range(start + 1, start + 6): ck.save(step)
with open(os.path.join(sys.argv[1], "prepared-" + os.environ["RANK"]), "a") as f: f.write("%d of %s restart %s\n" % (start, os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]))
`

// TestLaunchersAfterOneAnother: the launchers of a command are served in turn, on all pods together, with different numbers of ranks. A
// launcher restores no step of an earlier one. A killed rank, agent or container costs as much as with one launcher. The command of a
// restarted container begins with its first launcher, and that launcher starts no rank again.
func TestLaunchersAfterOneAnother(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	pods := []*proctest.Container{newPod(t, c, "a"), newPod(t, c, "b")}
	shared := t.TempDir()
	c.Lead("a", "b")
	begin := func(p *proctest.Container) {
		p.Start("bash", "-c", "for n in 1 2; do torchrun --nproc-per-node=$n prepare.py "+shared+" || exit 9; done && torchrun --nproc-per-node=2 train.py "+shared+" 10; echo code $?")
	}
	for _, p := range pods {
		p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"] = "65536", "2"
		p.File("prepare.py", preparing)
		p.File("train.py", trainer)
		begin(p)
	}
	training := func(generation uint64) *v1.Report {
		r := c.Await(t, "b", "trains", func(r *v1.Report) bool {
			return r.Launch == 3 && runs(generation, 2)(r) && len(r.Rank[0].Sealed) > 0 && len(r.Rank[1].Sealed) > 0
		})
		return r
	}
	r := training(3)
	kill(t, int(r.Rank[1].Pid), syscall.SIGKILL)
	training(4)
	kill(t, pods[0].AgentPID(), syscall.SIGKILL)
	pods[1].Kill()
	begin(pods[1])
	if r := training(5); r.Containers != 2 {
		t.Errorf("%d containers are told", r.Containers)
	}
	pods[0].File(filepath.Join(shared, "enough"), "")
	for _, p := range pods {
		if code := p.Wait(); code != 0 || !strings.Contains(p.Out.String(), "code 0") {
			t.Errorf("exit code %d, %q, %q", code, p.Out, p.Errs)
		}
	}
	for rank, want := range []string{"0 of 2 restart 0\n0 of 4 restart 0\n", "0 of 2 restart 0\n0 of 4 restart 0\n", "0 of 4 restart 0\n", "0 of 4 restart 0\n"} {
		if got, err := os.ReadFile(filepath.Join(shared, "prepared-"+string(rune('0'+rank)))); err != nil || string(got) != want {
			t.Errorf("rank %d prepared %q, %v", rank, got, err)
		}
	}
	if log, err := os.ReadFile(filepath.Join(shared, "log-3")); err != nil || !strings.HasPrefix(string(log), "3 start 0\n") {
		t.Errorf("%q, %v", log, err)
	}
}
