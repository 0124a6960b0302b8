//go:build linux

package loop_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

func runs(generation uint64, number int) func(*v1.Report) bool {
	return func(r *v1.Report) bool {
		if r.State != v1.State_STATE_RUNNING || r.Generation != generation || len(r.Rank) != number {
			return false
		}
		for _, rank := range r.Rank {
			if rank.Pid == 0 {
				return false
			}
		}
		return true
	}
}

func TestInitReturnsTheExitCodeOfTheCommand(t *testing.T) {
	for _, coordinator := range []bool{false, true} {
		for command, want := range map[string]int{"exit 7": 7, "exit 0": 0, "kill -9 $$": 137, "exec nothing-like-this": 127} {
			t.Run(fmt.Sprintf("%v %s", coordinator, command), func(t *testing.T) {
				var c *coordtest.Coordinator
				if coordinator {
					c = coordtest.Start(t)
				}
				p := newPod(t, c, "a")
				p.Start("bash", "-c", command)
				if coordinator && want != 0 { // the command would run again, unless the coordinator knows that this is in vain
					r := c.Await(t, "a", "tells of the end", func(r *v1.Report) bool { return r.WholeCommand && r.Rank[0].Exit != nil })
					c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_EXIT, ExitCode: r.Rank[0].Exit.Code})
				}
				got := p.Wait()
				if !coordinator && command == "kill -9 $$" {
					want = -1 // the command was killed itself, not by a parent that reports it
				}
				if coordinator && want == 137 {
					want = 1 // only a container that was killed whole ends with 137
				}
				if got != want {
					t.Errorf("exit code %d, want %d", got, want)
				}
			})
		}
	}
}

func TestInitWithoutCoordinatorChangesNothing(t *testing.T) {
	p := newPod(t, nil, "a")
	p.Start("bash", "-c", `echo "$PATH|$PYTHONPATH|$HOLDFAST_ROOT|$$"`)
	pid := p.Init.Process.Pid
	if code := p.Wait(); code != 0 {
		t.Fatal(code)
	}
	if want := fmt.Sprintf("%s|||%d\n", p.Env["PATH"], pid); p.Out.String() != want {
		t.Errorf("got %q, want %q", p.Out, want)
	}
}

func TestInitForwardsSignals(t *testing.T) {
	p := newPod(t, coordtest.Start(t), "a")
	p.Start("bash", "-c", `trap 'echo got TERM; exit 3' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.05; done`)
	p.Out.Await(t, "ready")
	kill(t, p.Init.Process.Pid, syscall.SIGUSR1)
	p.Out.Await(t, "got USR1")
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	if code := p.Wait(); code != 3 || !strings.Contains(p.Out.String(), "got TERM") {
		t.Errorf("exit code %d, output %q", code, p.Out)
	}
}

func TestLaunchRunsAndReturns(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", `
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID OMP_NUM_THREADS HOLDFAST_GENERATION HOLDFAST_RESTORE_STEP MINE"
os.write(1, (" ".join(os.environ.get(n, "-") for n in names.split()) + " " + repr(sys.argv) + " " + os.getcwd() + "\n").encode())
os.write(2, b"to standard error \xff\n")
`)
	c.Lead("a")
	p.Start("bash", "-c", "mkdir sub; cd sub; MINE=x torchrun --nproc-per-node=2 --max-restarts=3 --rdzv-id=j ../train.py --a 'b c'; echo code $?")
	if code := p.Wait(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for rank := range 2 {
		want := fmt.Sprintf("%d %d 2 2 0 1 %d 2 default 127.0.0.1 0 3 j 1 1 0 x ['../train.py', '--a', 'b c'] %s/sub\n", rank, rank, rank, p.Dir)
		if !strings.Contains(p.Out.String(), want) {
			t.Errorf("no %q in %q", want, p.Out)
		}
	}
	if !strings.HasSuffix(p.Out.String(), "code 0\n") || strings.Count(p.Errs.String(), "to standard error \xff\n") != 2 {
		t.Errorf("output %q and %q", p.Out, p.Errs)
	}
}

func TestLauncherAsModule(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", `import os, sys; os.write(1, b"rank %s %s\n" % (os.environb[b"RANK"], repr(sys.warnoptions).encode()))`)
	c.Lead("a")
	p.Start("bash", "-c", "exec python3 -W error -m torch.distributed.run --nproc-per-node 2 train.py")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if out := p.Out.String(); !strings.Contains(out, "rank 0 ['error']\n") || !strings.Contains(out, "rank 1 ['error']\n") {
		t.Errorf("output %q", out)
	}
}

// TestRanksInheritWhatTheShellSet: ranks have the launcher's limits, although they are not its children.
func TestRanksInheritWhatTheShellSet(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", `
import os, resource as r, signal, sys
print(oct(os.umask(0)), r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE), sorted(os.sched_getaffinity(0)), os.nice(0) == min(19, int(sys.argv[1]) + 1),
    signal.pthread_sigmask(signal.SIG_BLOCK, []), sys.stdin.read())
`)
	c.Lead("a")
	p.File("block.py", `import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.execvp(sys.argv[1], sys.argv[1:])`)
	p.Start("bash", "-c", "umask 027; ulimit -c 12; ulimit -S -n 777; ulimit -H -n 888; echo from the pipe | taskset -c 0 nice -n 1 python3 block.py torchrun train.py `nice`")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if want := "0o27 (12288, 12288) (777, 888) [0] True {<Signals.SIGUSR2: 12>} from the pipe\n\n"; p.Out.String() != want {
		t.Errorf("output %q, want %q", p.Out, want)
	}
}

func TestOrdinaryLimitsStayOrdinary(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	script := `import resource as r; print([r.getrlimit(n) for n in range(16)])`
	p.File("train.py", script)
	plain, err := exec.Command("python3", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	c.Lead("a")
	p.Start("torchrun", "train.py")
	if code := p.Wait(); code != 0 || p.Out.String() != string(plain) {
		t.Errorf("exit code %d, limits %q, want %q", code, p.Out, plain)
	}
}

// TestNotes: each setting that is off or does not fit yields a note with the remedy, and training runs.
func TestNotes(t *testing.T) {
	needPython(t)
	for name, tt := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"nothing asked for":  {nil, []string{"state in memory is off: no holdfast.dev/state-size", "standbys are off: holdfast.dev/standbys is off"}},
		"too many ranks":     {map[string]string{"HOLDFAST_STATE_BYTES": "4096", "HOLDFAST_RANKS": "1"}, []string{"the launcher starts 2 ranks and memory was counted for 1; set holdfast.dev/ranks to 2"}},
		"no room":            {map[string]string{"HOLDFAST_STATE_BYTES": "1152921504606846976"}, []string{"state in memory is off: taking", "set a smaller holdfast.dev/state-size"}},
		"one slot":           {map[string]string{"HOLDFAST_STATE_BYTES": "4096", "HOLDFAST_SLOTS": "1"}, []string{"state in memory is off: HOLDFAST_SLOTS is not a number from 2 to 3"}},
		"state does not fit": {map[string]string{"HOLDFAST_STATE_BYTES": "1048576"}, []string{"state in memory is not kept: it needs 4 MiB and a slot holds 1 MiB; set holdfast.dev/state-size to 4Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			p := newPod(t, c, "a")
			maps.Copy(p.Env, tt.env)
			p.File("train.py", `
import holdfast, time
ck = holdfast.attach()
ck.track(big=bytearray(3500000))
ck.restore()
for step in range(1, 1000000):
    ck.save(step)
    time.sleep(0.01)
`)
			c.Lead("a")
			p.Start("torchrun", "--nproc-per-node=2", "train.py")
			for _, want := range tt.want {
				r := c.Await(t, "a", "says "+want, func(r *v1.Report) bool { return strings.Contains(strings.Join(r.Notes, "\n"), want) })
				if fits := r.StateBytes > 0; fits != (name == "state does not fit") {
					t.Errorf("state bytes %d", r.StateBytes)
				}
			}
			c.Await(t, "a", "runs", runs(1, 2))
		})
	}
}

// TestNoteOnBlocking: while a client reports why its copies are made inside save, the agent's report has that reason.
func TestNoteOnBlocking(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STATE_BYTES"] = "4096"
	p.File("train.py", `
import holdfast, os, time
ck = holdfast.attach()
ck.restore()
if os.environ["LOCAL_RANK"] == "1":
    ck._publish(blocking=1, reason=6)
    while not os.path.exists("enough"):
        time.sleep(0.01)
    ck._publish(blocking=0, reason=0)
time.sleep(1000)
`)
	c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	const want = "checkpoints are copied inside save, not in the background: a closure runs forward and backward within the optimizer's step"
	c.Await(t, "a", "says why", func(r *v1.Report) bool { return slices.Contains(r.Notes, want) })
	p.File("enough", "")
	c.Await(t, "a", "says so no more", func(r *v1.Report) bool { return !slices.Contains(r.Notes, want) })
}

const sleeper = `
import os, sys, time, signal
signal.signal(signal.SIGUSR1, lambda *a: sys.exit(5))
def boom(*a): raise ValueError("boom " + os.environ["RANK"])
signal.signal(signal.SIGUSR2, boom)
signal.signal(signal.SIGHUP, lambda *a: sys.exit(0))
os.write(1, b"rank %s generation %s\n" % (os.environb[b"RANK"], os.environb[b"HOLDFAST_GENERATION"]))
while True: time.sleep(0.01)
`

func TestKilledRankLeadsToANewGeneration(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	a, b := newPod(t, c, "a"), newPod(t, c, "b")
	for _, p := range []*proctest.Container{a, b} {
		p.File("train.py", sleeper)
		p.Start("torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py")
	}
	c.Lead("a", "b")
	first := c.Await(t, "b", "runs generation 1", runs(1, 2))
	a.Out.Await(t, "rank 0 generation 1", "rank 1 generation 1")
	b.Out.Await(t, "rank 2 generation 1", "rank 3 generation 1")
	kill(t, int(first.Rank[1].Pid), syscall.SIGKILL)
	for _, p := range []*proctest.Container{a, b} {
		r := c.Await(t, p.Name, "runs generation 2", runs(2, 2))
		if r.Incarnation != 1 {
			t.Errorf("incarnation %d", r.Incarnation)
		}
	}
	a.Out.Await(t, "rank 0 generation 2", "rank 1 generation 2")
	b.Out.Await(t, "rank 2 generation 2", "rank 3 generation 2")
	for _, p := range []*proctest.Container{a, b} {
		for _, rank := range c.Report(p.Name).Rank {
			kill(t, int(rank.Pid), syscall.SIGHUP)
		}
	}
	for _, p := range []*proctest.Container{a, b} {
		if code := p.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestExitsAreReported(t *testing.T) {
	needPython(t)
	for _, tt := range []struct {
		sig       syscall.Signal
		code, by  int32
		traceback string
	}{{syscall.SIGKILL, 137, 9, ""}, {syscall.SIGUSR1, 5, 0, ""}, {syscall.SIGUSR2, 1, 0, "ValueError: boom 0"}} {
		for _, orphan := range []bool{false, true} {
			t.Run(fmt.Sprintf("signal %d orphan %v", tt.sig, orphan), func(t *testing.T) {
				c := coordtest.Start(t)
				p := newPod(t, c, "a")
				p.File("train.py", sleeper)
				g := c.Lead("a")
				p.Start("torchrun", "train.py")
				r := c.Await(t, "a", "runs", runs(1, 1))
				p.Out.Await(t, "generation 1")
				g.Unlead()
				if orphan {
					kill(t, p.AgentPID(), syscall.SIGKILL)
					again := c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == 2 })
					if again.State != v1.State_STATE_RUNNING || again.Rank[0].Pid != r.Rank[0].Pid {
						t.Fatalf("not taken over: %v", again)
					}
				}
				kill(t, int(r.Rank[0].Pid), tt.sig)
				r = c.Await(t, "a", "failed", func(r *v1.Report) bool { return r.State == v1.State_STATE_FAILED })
				e := r.Rank[0].Exit
				if e.GetCode() != tt.code || e.GetSignal() != tt.by || !strings.Contains(e.GetTraceback(), tt.traceback) ||
					(tt.traceback == "") != (e.GetTraceback() == "") {
					t.Errorf("exit %v", e)
				}
				c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT, ExitCode: e.GetCode()})
				want := int(tt.code)
				if want == 137 { // 137 means that a container was killed whole
					want = 1
				}
				if code := p.Wait(); code != want {
					t.Errorf("the container returned %d", code)
				}
			})
		}
	}
}

func TestHaltEndsStraysToo(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	mark := strconv.Itoa(os.Getpid()) // so that only processes of this test are counted
	p.File("train.py", strings.ReplaceAll(`
import subprocess, time, os
# in a session of its own; and one that has left its environment but not the session; each with a child
subprocess.Popen(["setsid", "sh", "-c", "sleep 1000.MARK & sleep 1001.MARK"])
subprocess.Popen(["env", "-i", "sh", "-c", "trap '' TERM HUP; sleep 1002.MARK & wait"])
print("ready", flush=True)
time.sleep(1000)
`, "MARK", mark))
	g := c.Lead("a")
	p.Start("torchrun", "train.py")
	p.Out.Await(t, "ready")
	eventually.Holds(t, "three strays", func() (bool, any) { n := sleeps(mark); return n == 3, n })
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	c.Await(t, "a", "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	if n := sleeps(mark); n != 0 {
		t.Errorf("HALTED was said while these run: %v", n)
	}
}

// sleeps counts the stray processes of TestHaltEndsStraysToo by their argument.
func sleeps(mark string) (found int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		if strings.HasPrefix(string(raw), "sleep\x00") && strings.HasSuffix(string(raw), "."+mark+"\x00") {
			found++
		}
	}
	return found
}

func TestAgentDiesAgainAndAgain(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", sleeper)
	c.Lead("a")
	p.Start("bash", "-c", "torchrun --nproc-per-node=2 train.py; echo the launcher returned $?")
	first := c.Await(t, "a", "runs", runs(1, 2))
	p.Out.Await(t, "rank 0 generation 1", "rank 1 generation 1")
	for i := range uint64(3) {
		kill(t, p.AgentPID(), syscall.SIGKILL)
		r := c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == i+2 })
		if r.State != v1.State_STATE_RUNNING || r.Rank[0].Pid != first.Rank[0].Pid || r.Rank[1].Pid != first.Rank[1].Pid {
			t.Fatalf("not taken over: %v", r)
		}
	}
	// The launcher has connected again, so that a new generation can start.
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "runs generation 2", runs(2, 2))
	p.Out.Await(t, "rank 0 generation 2", "rank 1 generation 2")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	for _, rank := range second.Rank {
		kill(t, int(rank.Pid), syscall.SIGHUP)
	}
	if code := p.Wait(); code != 0 || !strings.Contains(p.Out.String(), "the launcher returned 0") {
		t.Errorf("exit code %d", code)
	}
}

// grace is the grace period of terminating pods, in seconds. No pod replaces them in these tests, so they wait until the grace period is
// nearly over.
const grace = "10"

func TestTermination(t *testing.T) {
	for _, command := range [][]string{{"torchrun", "train.py"}, {"bash", "-c", "torchrun train.py; echo never said"}} {
		t.Run(command[0], func(t *testing.T) { terminate(t, command) })
	}
}

func terminate(t *testing.T, command []string) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_GRACE_SECONDS"] = grace
	p.File("train.py", `
import os, signal, sys, time
def term(*a):
    print("saving what there is", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
print("ready", flush=True)
while True: time.sleep(0.01)
`)
	c.Lead("a")
	p.Start(command...)
	p.Out.Await(t, "ready")
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	if code := p.Wait(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	if !strings.Contains(p.Out.String(), "saving what there is") {
		t.Errorf("the rank was not asked: %q", p.Out)
	}
	if r := c.Report("a"); !r.Terminating || r.State != v1.State_STATE_HALTED {
		t.Errorf("last report %v", r)
	}
	if left := p.Processes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAgentDiesDuringTermination: the next agent completes the termination, and the container ends.
func TestAgentDiesDuringTermination(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_GRACE_SECONDS"] = grace
	p.File("train.py", `
import signal, time
signal.signal(signal.SIGTERM, lambda *a: print("asked", flush=True))
signal.signal(signal.SIGHUP, lambda *a: exit(0))
print("ready", flush=True)
while True: time.sleep(0.01)
`)
	c.Lead("a")
	p.Start("torchrun", "train.py")
	p.Out.Await(t, "ready")
	rank := int(c.Await(t, "a", "runs", runs(1, 1)).Rank[0].Pid)
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	p.Out.Await(t, "asked")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == 2 && r.Terminating })
	kill(t, rank, syscall.SIGHUP)
	if code := p.Wait(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	if left := p.Processes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAgentDiesBeforeItStartsRanks: the next agent starts the ranks, and no rank counts as failed.
func TestAgentDiesBeforeItStartsRanks(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", "print('trained')")
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "has a launcher", func(r *v1.Report) bool { return r.Ranks == 1 })
	// init starts no agent until the stored state is that of an agent that has accepted the generation
	kill(t, p.Init.Process.Pid, syscall.SIGSTOP)
	kill(t, p.AgentPID(), syscall.SIGKILL)
	file := p.Root + "/run/agent.json"
	var left map[string]any
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &left)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := &v1.Generation{Number: 1, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 29571}
	state := left["state"].(map[string]any)
	state["generation"], state["phase"], state["clean"] = 1, "Running", false
	state["run"] = map[string]any{"number": 1, "worldSize": 1, "nodes": 1, "masterAddr": run.MasterAddr, "masterPort": run.MasterPort}
	raw, _ = json.Marshal(left)
	p.File(file, string(raw))
	kill(t, p.Init.Process.Pid, syscall.SIGCONT)
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_RUN, Run: run})
	r := c.Await(t, "a", "has ended", func(r *v1.Report) bool {
		return r.Incarnation == 2 && (r.State == v1.State_STATE_FINISHED || r.State == v1.State_STATE_FAILED)
	})
	if r.State != v1.State_STATE_FINISHED {
		t.Errorf("report %v", r)
	}
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT})
	if code := p.Wait(); code != 0 { // Wait returns after all output of the container was read
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(p.Out.String(), "trained"); n != 1 {
		t.Errorf("trained %d times", n)
	}
}

// TestAgentStaysWhileTheCommandLeaves: a command that continues for a while after its launcher has returned keeps the same agent.
func TestAgentStaysWhileTheCommandLeaves(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_GRACE_SECONDS"] = "30"
	p.File("train.py", "import time\nprint('trains', flush=True)\nwhile True: time.sleep(0.1)")
	p.Start("bash", "-c", "trap : TERM; torchrun train.py; echo returned; while [ ! -e finish ]; do sleep 0.05; done; exit 3")
	c.Lead("a")
	p.Out.Await(t, "trains")
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	p.Out.Await(t, "returned")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == 2 })
	time.Sleep(2 * time.Second)
	if r := c.Report("a"); r.Incarnation != 2 {
		t.Errorf("%d agents", r.Incarnation)
	}
	p.File("finish", "")
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

func TestRefusedLauncher(t *testing.T) {
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Start("bash", "-c", "torchrun --logs-specs mine train.py; echo code $?")
	c.Await(t, "a", "is refused", func(r *v1.Report) bool { return strings.HasPrefix(r.Refused, "--logs-specs=mine: is not honoured") })
	p.Out.Await(t, "code 2")
	p.Errs.Await(t, "holdfast: --logs-specs=mine: is not honoured under holdfast; remove it")
}

func TestSecondLauncherIsRefused(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", sleeper)
	c.Lead("a")
	p.Start("bash", "-c", "torchrun train.py & while ! test -e on; do sleep 0.01; done; torchrun train.py; echo code $?; wait")
	c.Await(t, "a", "runs", runs(1, 1))
	p.File("on", "")
	p.Out.Await(t, "code 2")
	p.Errs.Await(t, "a launcher runs in this container already, and holdfast runs one at a time")
}

// TestPipelinesEnd: a reader of the launcher's output reads end of file when the launcher has returned, although the agent and standbys had
// the same descriptors.
func TestPipelinesEnd(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", modest)
	c.Lead("a")
	p.Start("bash", "-c", `torchrun train.py 2>&1 | cat; echo "served ${PIPESTATUS[0]}"; torchrun --logs-specs mine train.py 2>&1 | cat; echo "refused ${PIPESTATUS[0]}"`)
	r := c.Await(t, "a", "has a standby", func(r *v1.Report) bool { return len(r.Rank) == 1 && r.Rank[0].StandbyReady })
	kill(t, int(r.Rank[0].Pid), syscall.SIGHUP)
	p.Out.Await(t, "served 0\n", "refused 2\n")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestPortConflictIsReported(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", sleeper)
	p.Start("torchrun", "train.py")
	r := c.Await(t, "a", "is ready", func(r *v1.Report) bool { return r.Ranks == 1 && r.Port != 0 })
	// Only a process that names the port can listen on it.
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", r.Port))
	if err != nil {
		t.Fatal(err)
	}
	run := &v1.Generation{Number: 1, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: r.Port}
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_RUN, Run: run})
	r = c.Await(t, "a", "failed", func(r *v1.Report) bool { return r.State == v1.State_STATE_FAILED })
	if tb := r.Rank[0].Exit.GetTraceback(); !strings.Contains(tb, "address already in use") {
		t.Errorf("traceback %q", tb)
	}
	l.Close()
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	halted := c.Await(t, "a", "halted with another port", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	if halted.Port == run.MasterPort || halted.Port == 0 {
		t.Errorf("port %d is offered again", halted.Port)
	}
	c.Direct(
		"a",
		&v1.Directive{Generation: 2, Order: v1.Order_ORDER_RUN, Run: &v1.Generation{Number: 2, WorldSize: 1, Nodes: 1, MasterPort: halted.Port}},
	)
	p.Out.Await(t, "generation 2")
}

// TestOnePortForTwoGangs: rank 0 of two gangs must listen on the same port of one node. The second gang waits until the first has ended,
// and uses the port in its next generation.
func TestOnePortForTwoGangs(t *testing.T) {
	needPython(t)
	port, err := proc.OfferPort(proc.Ports{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	port.Close()
	c := coordtest.Start(t)
	a, b := newPod(t, c, "a"), newPod(t, c, "b")
	for _, p := range []*proctest.Container{a, b} {
		p.File("train.py", `
import os, socket, time
s = socket.create_server(("", int(os.environ["MASTER_PORT"])))
os.write(1, b"port %s generation %s\n" % (os.environb[b"MASTER_PORT"], os.environb[b"HOLDFAST_GENERATION"]))
while not os.path.exists("over"): time.sleep(0.01)
`)
		p.Env["HOLDFAST_SLOT"], p.Env["HOLDFAST_MASTER_PORT"] = "0", fmt.Sprintf("%d-%[1]d", port.Number)
	}
	c.Lead("a")
	c.Lead("b")
	a.Start("torchrun", "train.py")
	first := c.Await(t, "a", "runs", runs(1, 1))
	a.Out.Await(t, fmt.Sprintf("port %d generation 1", port.Number))
	b.Start("torchrun", "train.py")
	c.Await(t, "b", "says that there is no port", func(r *v1.Report) bool {
		return r.Ranks == 1 && r.Port == 0 && slices.ContainsFunc(r.Notes, func(n string) bool {
			return strings.Contains(n, fmt.Sprintf("rank 0 has no port to listen on: port %d of holdfast.dev/master-port: no port is free", port.Number))
		})
	})
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	a.Out.Await(t, fmt.Sprintf("port %d generation 2", port.Number))
	a.File("over", "")
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	b.Out.Await(t, fmt.Sprintf("port %d generation 1", port.Number))
	if r := c.Report("b"); len(r.Notes) > 0 && strings.Contains(strings.Join(r.Notes, ""), "no port") {
		t.Errorf("notes %v", r.Notes)
	}
}

func TestCoordinatorAway(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", sleeper)
	c.Lead("a")
	p.Start("torchrun", "train.py")
	first := c.Await(t, "a", "runs", runs(1, 1))
	p.Out.Await(t, "generation 1")
	// first, because a connection attempt that has read the old token could still be accepted
	p.File(filepath.Join(p.Root, "token", "token"), "renewed")
	c.Stop()
	kill(t, int(first.Rank[0].Pid), syscall.SIGUSR1)
	c.Again(t)
	r := c.Await(t, "renewed", "tells of the failure", func(r *v1.Report) bool { return r.State == v1.State_STATE_FAILED })
	if r.Rank[0].Exit.GetCode() != 5 {
		t.Errorf("exit %v", r.Rank[0].Exit)
	}
	if tokens := c.Tokens(); tokens[len(tokens)-1] != "renewed" {
		t.Errorf("the token was not read again: %v", tokens)
	}
}
