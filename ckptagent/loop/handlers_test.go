//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

// saves is a script that trains. At SIGTERM it saves for a number of seconds and exits with 0.
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

// TestWhoSavesWhenAskedHasTheGrace: pod a is deleted, and the ranks of both pods save for a long time at SIGTERM, for each form of command.
// The ranks of both pods have the grace period of the terminating pod.
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

// ownSharedMemory gives a container its own process namespace and /dev/shm, as real containers have. ownSharedMemory returns the folder of
// that shared memory.
func ownSharedMemory(t *testing.T, p *proctest.Container) string {
	t.Helper()
	shm := filepath.Join(p.Dir, "shm")
	if err := os.Mkdir(shm, 0o777); err != nil {
		t.Fatal(err)
	}
	p.Env["HOLDFAST_SHM"] = "own"
	p.Within = []string{"unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"}
	if os.Geteuid() != 0 {
		p.Within = append(p.Within, "--map-root-user")
	}
	p.Within = append(p.Within, "bash", "-c", `mount --bind "$0" /dev/shm && exec "$@"`, shm)
	return shm
}

func namesIn(folder string) string {
	var names []string
	files, err := os.ReadDir(folder)
	for _, f := range files {
		names = append(names, f.Name())
	}
	return fmt.Sprint(names, err)
}

// TestWhatARankLeavesInSharedMemory: the killed ranks of each generation leave a cache with a fixed name, semaphores, and segments of a
// loader's workers. The agent removes these. Files that were there before stay.
func TestWhatARankLeavesInSharedMemory(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	shm := ownSharedMemory(t, p)
	p.File("shm/before", "")
	p.File("train.py", `
import os, time, multiprocessing
from multiprocessing import shared_memory
if os.environ["LOCAL_RANK"] == "0":
    made = shared_memory.SharedMemory(name="000000_locals", create=True, size=1 << 20)
    lock = multiprocessing.Lock()
    def work():
        fd = os.open("/dev/shm/torch_%d" % os.getpid(), os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.truncate(fd, 4096)
        print("a worker has its segment", flush=True)
        time.sleep(1000)
    workers = [multiprocessing.Process(target=work, daemon=True) for _ in range(2)]
    for worker in workers: worker.start()
    fd = os.open("/dev/shm/plain", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.truncate(fd, 4096)
print("generation %s has its segments" % os.environ["HOLDFAST_GENERATION"], flush=True)
time.sleep(1000)
`)
	g := c.Lead("a")
	p.Start("bash", "-c", "echo x >/dev/shm/prepared; torchrun --nproc-per-node=2 train.py")
	for generation := uint64(1); generation < 4; generation++ {
		r := c.Await(t, "a", "runs", runs(generation, 2))
		p.Out.Until(t, func(have string) string {
			want := fmt.Sprintf("generation %d has its segments", generation)
			if strings.Count(have, want) < 2 || strings.Count(have, "a worker has its segment") < 2*int(generation) {
				return want
			}
			return ""
		})
		for pid := range p.Processes() {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if strings.Contains(string(status), fmt.Sprintf("NSpid:\t%d\t%d\n", pid, r.Rank[generation%2].Pid)) {
				kill(t, pid, syscall.SIGKILL)
			}
		}
	}
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 4, Order: v1.Order_ORDER_EXIT, ExitCode: 3})
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	if got := namesIn(shm); got != "[before prepared] <nil>" {
		t.Errorf("shared memory has %s", got)
	}
}

// TestAPathOfTheUsersOwn: ranks have the client and the site hook also if the command sets PYTHONPATH or gives the launcher an environment
// of its own.
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
