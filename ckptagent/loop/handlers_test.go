//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// saves trains; when it is asked it saves for so many seconds, and ends well.
const saves = `
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.time()))
print("ready", flush=True)
while not asked: time.sleep(0.01)
print("saves", flush=True)
while time.time() < asked[0] + float(sys.argv[1]): time.sleep(0.01)
open("saved-" + os.environ["RANK"], "w").close()
os._exit(0)
`

// TestWhoSavesWhenAskedHasTheGrace: pod a is deleted, and the ranks of both pods save for long when they are asked by SIGTERM, in each form of
// command. Both have the time that the terminating pod has.
func TestWhoSavesWhenAskedHasTheGrace(t *testing.T) {
	needPython(t)
	const seconds = 20
	train := fmt.Sprintf("torchrun --nnodes=2 --nproc-per-node=2 train.py %d", seconds)
	for name, command := range map[string][]string{
		"torchrun": strings.Fields(train),
		"exec":     {"bash", "-c", "exec " + train},
		"trap":     {"bash", "-c", train + ` & pid=$!; trap 'kill -TERM $pid; wait $pid' TERM; wait $pid`},
		"tee":      {"bash", "-c", train + " 2>&1 | tee log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := coordtest.Start(t)
			a, b := newPod(t, c, "a"), newPod(t, c, "b")
			g := c.Lead("a", "b")
			for _, p := range []*proctest.Container{a, b} {
				p.Env["HOLDFAST_GRACE_SECONDS"] = "90"
				p.File("train.py", saves)
				p.Start(command...)
			}
			for _, p := range []*proctest.Container{a, b} {
				c.Await(t, p.Name, "runs", runs(1, 2))
				p.Out.Until(t, func(have string) string {
					if strings.Count(have, "ready") < 2 {
						return "ready, twice"
					}
					return ""
				})
			}
			g.Unlead()
			kill(t, a.Init.Process.Pid, syscall.SIGTERM)
			for _, p := range []*proctest.Container{a, b} {
				c.Direct(p.Name, &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT, HaltWithinSeconds: 72})
			}
			for i, p := range []*proctest.Container{a, b} {
				r := c.Await(t, p.Name, "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
				if r.Waited != 2 || r.WaitedMs < (seconds-2)*1000 || r.WaitedMs > 60_000 {
					t.Errorf("waited for %v, for %d ms", r.Waited, r.WaitedMs)
				}
				for rank := range 2 {
					if _, err := os.Stat(fmt.Sprintf("%s/saved-%d", p.Dir, 2*i+rank)); err != nil {
						t.Errorf("pod %s: %v", p.Name, err)
					}
				}
			}
			c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT, ExitCode: 143})
			if code := a.Wait(); code != 143 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestWhatARankLeavesInSharedMemory: a rank makes a named segment and a semaphore, and is killed in each generation; what lay there before
// stays.
func TestWhatARankLeavesInSharedMemory(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	mine := fmt.Sprintf("holdfast-test-%d-", time.Now().UnixNano())
	p.Env["SEGMENT"], p.Env["HOLDFAST_SHM"] = mine, "own"
	p.File("train.py", `
import os, time
from multiprocessing import shared_memory
name = os.environ["SEGMENT"]
if os.environ["LOCAL_RANK"] == "0":
    made = shared_memory.SharedMemory(name=name + "tracked", create=True, size=1 << 20)
    fd = os.open("/dev/shm/" + name + "plain", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.truncate(fd, 4096)
print("generation %s has its segments" % os.environ["HOLDFAST_GENERATION"], flush=True)
time.sleep(1000)
`)
	before := "/dev/shm/" + mine + "before"
	if err := os.WriteFile(before, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(before) })
	g := c.Lead("a")
	p.Start("bash", "-c", "echo x >/dev/shm/${SEGMENT}prepared; torchrun --nproc-per-node=2 train.py")
	t.Cleanup(func() { os.Remove("/dev/shm/" + mine + "prepared") })
	for generation := uint64(1); generation < 4; generation++ {
		r := c.Await(t, "a", "runs", runs(generation, 2))
		p.Out.Until(t, func(have string) string {
			want := fmt.Sprintf("generation %d has its segments", generation)
			if strings.Count(have, want) < 2 {
				return want
			}
			return ""
		})
		kill(t, int(r.Rank[0].Pid), syscall.SIGKILL)
	}
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 4, Order: v1.Order_ORDER_EXIT, ExitCode: 3})
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	eventually.Holds(t, "only what lay there before is left", func() (bool, any) {
		var left []string
		all, err := os.ReadDir("/dev/shm")
		for _, f := range all {
			if name, ok := strings.CutPrefix(f.Name(), mine); ok {
				left = append(left, name)
			}
		}
		return fmt.Sprint(left) == "[before prepared]", fmt.Sprint(left, err)
	})
}

// TestAPathOfTheUsersOwn: a line that sets PYTHONPATH, or gives the launcher an environment of its own, takes neither the client nor the site hook
// from ranks.
func TestAPathOfTheUsersOwn(t *testing.T) {
	needPython(t)
	for name, before := range map[string]string{
		"PYTHONPATH":       "PYTHONPATH=$PWD/app",
		"empty PYTHONPATH": "PYTHONPATH=",
		"env -i":           "env -i PATH=$PATH PYTHONPATH=$PWD/app HOLDFAST_ROOT=$HOLDFAST_ROOT",
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			p := newPod(t, c, "a")
			p.File("train.py", `
import holdfast, os, sys
print("client of", os.path.dirname(holdfast.__path__[0]), "hook", "_holdfast_site" in sys.modules, "path ends with", os.environ["PYTHONPATH"].split(":")[-1], flush=True)
`)
			c.Lead("a")
			p.Start("bash", "-c", before+" torchrun train.py")
			if code := p.Wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			last := p.Root + "/python"
			if name != "empty PYTHONPATH" {
				last = p.Dir + "/app"
			}
			p.Out.Await(t, "client of "+p.Root+"/python hook True path ends with "+last)
		})
	}
}
