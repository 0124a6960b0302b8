//go:build linux

package loop_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/seeds"
)

// trainer is a script that counts steps in its state, checks the state that it restores, and writes its events to a file. Ranks of a gang
// step together by one lock file each, as with collectives. After the file "enough" exists, rank 0 chooses the last step and sends it to
// all ranks before it begins the present step.
const trainer = `
import array, os, sys, time, holdfast
rank, world, more = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[2])
shared = sys.argv[1]
enough, last = os.path.join(shared, "enough"), os.path.join(shared, "last")
state = array.array("Q", [0] * 4096)
def fill(step):
    for i in range(0, 4096, 64): state[i] = step * 1000003 + i + rank
class Thing:
    def state_dict(self): return {"state": state}
    def load_state_dict(self, d): state[:] = d["state"]
ck = holdfast.attach()
ck.track(thing=Thing())
start = ck.restore()
if start:
    for i in range(0, 4096, 64):
        assert state[i] == start * 1000003 + i + rank, (start, i, state[i])
gen = os.environ["HOLDFAST_GENERATION"]
log = os.open(os.path.join(shared, "log-%d" % rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"%s start %d\n" % (gen.encode(), start))
def barrier(step):
    me = os.path.join(shared, "at-%s-%d" % (gen, rank))
    with open(me + ".new", "w") as f: f.write(str(step))
    os.replace(me + ".new", me)
    for other in range(world):
        while True:
            try:
                with open(os.path.join(shared, "at-%s-%d" % (gen, other))) as f:
                    if int(f.read()) >= step: break
            except FileNotFoundError: pass
            time.sleep(0.0005)
step = start
while not os.path.exists(last) or step < int(open(last).read()):
    step += 1
    time.sleep(0.003)
    if rank == 0 and os.path.exists(enough) and not os.path.exists(last):
        with open(last + ".new", "w") as f: f.write(str(step + more))
        os.replace(last + ".new", last)
    barrier(step)
    fill(step)
    s = ck.save(step)
    ck.step(step)
    os.write(log, b"%s step %d %s\n" % (gen.encode(), step, b"saved" if s else b"skipped"))
`

// TestKillsLoseNothing kills ranks and agents at random times. Every step that all ranks had sealed, or a newer one, is there in the next
// generation.
func TestKillsLoseNothing(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	pods := []*proctest.Container{newPod(t, c, "a"), newPod(t, c, "b")}
	shared := t.TempDir()
	d := c.Lead("a", "b")
	for _, p := range pods {
		p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"] = "65536", "2"
		p.File("train.py", trainer)
		p.Start("torchrun", "--nproc-per-node=2", "train.py", shared, "40")
	}
	rnd := rand.New(rand.NewPCG(seeds.Fresh(t), 2))
	for generation := uint64(1); generation <= 6; generation++ {
		for _, p := range pods {
			c.Await(t, p.Name, fmt.Sprintf("runs generation %d and is past its restore", generation), func(r *v1.Report) bool {
				return r.Generation == generation && r.Timeline.FirstStep != 0 && r.Rank[0].Step > 0
			})
		}
		time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond) // not to synchronise: the kill must come at a random moment
		p := pods[rnd.IntN(2)]
		if generation%3 == 0 {
			kill(t, p.AgentPID(), syscall.SIGKILL)
		}
		acknowledged := d.CommonStep()
		kill(t, int(c.Report(p.Name).Rank[rnd.IntN(2)].Pid), syscall.SIGKILL)
		r := c.Await(t, p.Name, "runs the next generation", runs(generation+1, 2))
		if restored := d.RestoreStep(); restored < acknowledged {
			t.Fatalf("generation %d restores step %d; %d was acknowledged by all: %v", generation+1, restored, acknowledged, r)
		}
	}
	pods[0].File(filepath.Join(shared, "enough"), "")
	for _, p := range pods {
		if code := p.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	if n := d.Restarts(); n != 6 {
		t.Errorf("%d restarts for 6 kills", n)
	}
	// The agent seals and grants as fast as the ranks step. On a fast machine hardly a save is skipped.
	fewest := proctest.Stretch
	for rank := range 4 {
		log, err := os.ReadFile(filepath.Join(shared, fmt.Sprintf("log-%d", rank)))
		if err != nil {
			t.Fatal(err)
		}
		least, saved, skipped := proctest.FewestSkipped(string(log))
		t.Logf("rank %d: %d steps saved, %d skipped", rank, saved, skipped)
		fewest = min(fewest, least)
	}
	if fewest > 1 {
		t.Errorf("%d of %d saves in a row were skipped at best", fewest, proctest.Stretch)
	}
}

// TestContainerComesBack: a restarted container, as with restartPolicy OnFailure, finds the steps that the previous container had sealed.
// It runs nothing of the old generation, and joins the next one.
func TestContainerComesBack(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	pods := []*proctest.Container{newPod(t, c, "a"), newPod(t, c, "b")}
	shared := t.TempDir()
	d := c.Lead("a", "b")
	for _, p := range pods {
		p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"] = "65536", "2"
		p.File("train.py", trainer)
		p.Start("torchrun", "--nproc-per-node=2", "train.py", shared, "10")
	}
	for _, p := range pods {
		c.Await(t, p.Name, "has sealed something", func(r *v1.Report) bool {
			return r.Timeline.FirstStep != 0 && len(r.Rank) == 2 && len(r.Rank[0].Sealed) > 0 && len(r.Rank[1].Sealed) > 0
		})
	}
	c.Await(t, "b", "has told all that it sealed", func(*v1.Report) bool { return d.CommonStep() > 0 })
	acknowledged := d.CommonStep()
	pods[1].Kill()
	pods[1].Start("torchrun", "--nproc-per-node=2", "train.py", shared, "10")
	back := c.Await(t, "b", "runs the next generation", runs(2, 2))
	if restored := d.RestoreStep(); restored < acknowledged {
		t.Errorf("generation 2 restores step %d; %d was acknowledged by all", restored, acknowledged)
	}
	if back.Containers != 2 {
		t.Errorf("%d containers are told", back.Containers)
	}
	if back.Incarnation != 2 {
		t.Errorf("incarnation %d, so the state of the container before was not found", back.Incarnation)
	}
	pods[0].File(filepath.Join(shared, "enough"), "")
	for _, p := range pods {
		if code := p.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// TestSavesAreReported: agents report the counts of saves for each rank. Agents of the version in hack/upgrade-from do not.
func TestSavesAreReported(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	c.Lead("a")
	p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"] = "65536", "2"
	p.File("train.py", trainer)
	shared := t.TempDir()
	p.Start("torchrun", "--nproc-per-node=2", "train.py", shared, "10")
	c.Await(t, "a", "has copied something of each rank", func(r *v1.Report) bool {
		return len(r.Rank) == 2 && r.Rank[0].GetSaves().GetCopied() > 0 && r.Rank[1].GetSaves().GetCopied() > 0
	})
	p.File(filepath.Join(shared, "enough"), "")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// modest is a script that imports some modules which a bare interpreter has not imported, and waits.
const modest = `
import os, sys, decimal, xml.dom.minidom, holdfast
ck = holdfast.attach()
ck.restore()
print("generation", os.environ["HOLDFAST_GENERATION"], flush=True)
import time, signal
signal.signal(signal.SIGHUP, lambda *a: sys.exit(0))
def boom(*a): raise ValueError("boom")
signal.signal(signal.SIGUSR2, boom)
step = 0
while True:
    step += 1
    ck.step(step)
    time.sleep(0.02)
`

// TestStandbyBecomesTheRank: standbys become ranks several times in a row. test/conformance checks that a rank observes no difference.
func TestStandbyBecomesTheRank(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", modest)
	c.Lead("a")
	p.Start("bash", "-c", "ulimit -c 0; umask 027; torchrun train.py --x 'y z'")
	first := c.Await(t, "a", "has a standby", func(r *v1.Report) bool { return len(r.Rank) == 1 && r.Rank[0].StandbyReady })
	if first.Rank[0].FromStandby {
		t.Error("the first generation cannot come from a standby")
	}
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "runs generation 2", runs(2, 1))
	if !second.Rank[0].FromStandby {
		t.Errorf("generation 2 was started cold: %v", second.Rank[0])
	}
	c.Await(t, "a", "has a standby again and handles signals, which it does before its first step", func(r *v1.Report) bool {
		return r.Generation == 2 && r.Rank[0].StandbyReady && r.Timeline.FirstStep != 0
	})
	// Exit codes and tracebacks are those of a normal start.
	kill(t, int(second.Rank[0].Pid), syscall.SIGUSR2)
	c.Await(t, "a", "runs generation 3", runs(3, 1))
	p.Errs.Await(t, "ValueError: boom")
	// The next fork is ready a moment later, because no module is imported again.
	third := c.Await(t, "a", "has a standby a third time", func(r *v1.Report) bool { return r.Generation == 3 && r.Rank[0].StandbyReady })
	kill(t, int(third.Rank[0].Pid), syscall.SIGKILL)
	if fourth := c.Await(t, "a", "runs generation 4", runs(4, 1)); !fourth.Rank[0].FromStandby {
		t.Errorf("generation 4 was started cold: %v", fourth.Rank[0])
	}
	p.Out.Await(t, "generation 4\n")
	c.Await(t, "a", "steps", func(r *v1.Report) bool { return r.Timeline.FirstStep != 0 })
	kill(t, int(c.Report("a").Rank[0].Pid), syscall.SIGHUP)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if left := p.Processes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStandbyThatDiesIsReplaced(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", modest)
	c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	ready := func(want ...bool) func(*v1.Report) bool {
		return func(r *v1.Report) bool {
			return len(r.Rank) == 2 && r.Rank[0].StandbyReady == want[0] && r.Rank[1].StandbyReady == want[1]
		}
	}
	r := c.Await(t, "a", "has standbys", ready(true, true))
	// The processes are the source, which is the agent's child, and one waiting fork per rank. For a moment there is also the process that
	// forked a standby.
	ranks := []int{int(r.Rank[0].Pid), int(r.Rank[1].Pid)}
	_, copies := standbys(p, t, 0, ranks...)
	kill(t, copies[0], syscall.SIGKILL)
	sources, _ := standbys(p, t, copies[0], ranks...)
	c.Await(t, "a", "has standbys after a copy died", ready(true, true))
	kill(t, sources[0], syscall.SIGKILL)
	c.Await(t, "a", "lost its standbys", ready(false, false))
	c.Await(t, "a", "has standbys again", ready(true, true))
	if r := c.Report("a"); r.Generation != 1 || r.State != v1.State_STATE_RUNNING {
		t.Errorf("the ranks were hurt: %v", r)
	}
	// Standbys die with their agent. The next agent has its own standbys, and no stray process is left.
	kill(t, p.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "has standbys of the next agent", func(r *v1.Report) bool { return r.Incarnation == 2 && ready(true, true)(r) })
	r = c.Report("a")
	standbys(p, t, 0, int(r.Rank[0].Pid), int(r.Rank[1].Pid))
}

// standbys waits until two ranks have one source and waiting forks, none of them the killed one, and no other process. For a moment there
// is also the process that forked a standby.
func standbys(p *proctest.Container, t *testing.T, killed int, ranks ...int) (sources, copies []int) {
	t.Helper()
	eventually.Holds(t, "one source and two copies", func() (bool, any) {
		sources, copies = nil, nil
		for pid, cmd := range p.Processes() {
			if !strings.HasSuffix(cmd, "train.py") || strings.Contains(cmd, "holdfast-agent") || strings.Contains(cmd, "torchrun") || slices.Contains(ranks, pid) {
				continue
			}
			if parent(pid) == p.AgentPID() {
				sources = append(sources, pid)
			} else {
				copies = append(copies, pid)
			}
		}
		return len(sources) == 1 && len(copies) == 2 && !slices.Contains(copies, killed), fmt.Sprintf("sources %v, copies %v in %v", sources, copies, p.Processes())
	})
	return sources, copies
}

// parent returns the parent of a process; 0: the process has ended.
func parent(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	var state string
	var ppid int
	if _, err := fmt.Sscan(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), &state, &ppid); err != nil {
		return 0
	}
	return ppid
}

// TestReplacedPodStartsItsRanksFromASource: an agent without modules receives those of its gang, imports them once while it waits for its
// first generation, and reports its own list when the coordinator requests it. A source that turns out unusable delays no start.
func TestReplacedPodStartsItsRanksFromASource(t *testing.T) {
	needPython(t)
	const script = `
import os, sys
early = sorted(m for m in ("colorsys", "sndhdr") if m in sys.modules)
line = " ".join([os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], *early])
os.write(1, line.encode() + b"\n")  # at once, for all ranks write to the same pipe
sys.stdin.read()
import time
time.sleep(1000)
`
	for name, tc := range map[string]struct {
		late    string // a package that the script imports late
		standby bool
		ranks   int
	}{
		"faithful":        {"", true, 2},
		"one rank":        {"", true, 1},
		"reads RANK":      {"import os; os.environ.get('RANK')", false, 2},
		"one reads RANK":  {"import os; os.environ.get('RANK')", false, 1},
		"starts a thread": {"import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			p := newPod(t, c, "a")
			p.Env["HOLDFAST_STANDBYS"], p.Env["PYTHONPATH"] = "auto", p.Dir
			p.File("train.py", script)
			p.File("late.py", tc.late)
			names := []string{"colorsys", "late", "sndhdr", "no name"}
			c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_WAIT, Modules: names, WantModules: true})
			p.Start("bash", "-c", fmt.Sprintf("sleep 0.3; exec torchrun --nproc-per-node=%d train.py", tc.ranks))
			notified := c.Await(t, "a", "has heard of modules and waits", func(r *v1.Report) bool { return int(r.Ranks) == tc.ranks && r.Port != 0 && len(r.Modules) > 0 })
			if tc.ranks == 1 && tc.standby { // otherwise cold, if the source has not imported half of the modules
				c.Await(t, "a", "has a standby", func(r *v1.Report) bool { return r.Rank[0].StandbyReady })
			}
			if want := names[:3]; notified.ModulesKnown != 4 && notified.ModulesKnown != 3 || !slices.Equal(notified.Modules[:3], want) {
				t.Errorf("tells %d modules, %v", notified.ModulesKnown, notified.Modules)
			}
			run := &v1.Generation{Number: 5, WorldSize: uint32(tc.ranks), Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: notified.Port}
			c.Direct("a", &v1.Directive{Generation: 5, Order: v1.Order_ORDER_RUN, Run: run})
			r := c.Await(t, "a", "runs", runs(5, tc.ranks))
			lines := p.Out.Lines(t, tc.ranks)
			slices.Sort(lines)
			for local, rank := range r.Rank {
				want := fmt.Sprintf("%d %d %d", local, local, tc.ranks)
				if tc.standby {
					want += " colorsys sndhdr"
				}
				if rank.FromStandby != tc.standby || lines[local] != want {
					t.Errorf("rank %d from a standby: %v, says %q, want %q", local, rank.FromStandby, lines[local], want)
				}
			}
		})
	}
}
