//go:build linux

package loop_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// atOnce makes the agent wait for no launcher.
const atOnce = "0"

func wholePod(t testing.TB, c *coordtest.Coordinator, name string, timeout string) *proctest.Container {
	needPython(t)
	p := newPod(t, c, name)
	p.Env["HOLDFAST_LAUNCHER_TIMEOUT_SECONDS"] = timeout
	p.Env["HOLDFAST_GRACE_SECONDS"] = grace
	return p
}

// spawner is a script without Holdfast whose child processes do the work.
const spawner = `
import multiprocessing as mp, os, signal, sys, time
def child(n):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("child %d of %s here" % (n, sys.argv[1:]), flush=True)
    while not os.path.exists("finish"): time.sleep(0.01)
if __name__ == "__main__":
    print("begins", os.environ.get("RANK", "-"), os.environ.get("WORLD_SIZE", "-"), os.environ.get("OMP_NUM_THREADS", "-"), flush=True)
    children = [mp.get_context("spawn").Process(target=child, args=(n,)) for n in range(2)]
    for c in children: c.start()
    for c in children:
        c.join()
        if c.exitcode: sys.exit(7)
    print("ends", flush=True)
`

// TestWholeCommandIsRestartedOnAllPods: the commands are a script that starts processes, a shell pipeline, and a program that is not
// Python. The command of one pod is killed, the commands of all pods start again, and the containers end with 0.
func TestWholeCommandIsRestartedOnAllPods(t *testing.T) {
	for name, command := range map[string][]string{
		"spawn":    {"python3", "train.py", "--lr", "3"},
		"pipeline": {"sh", "-c", "echo begins - - -; while [ ! -e finish ]; do sleep 0.05; done | cat; echo ends"},
		"binary":   {"tail", "--retry", "-f", "-n", "+1", "words"},
	} {
		t.Run(name, func(t *testing.T) {
			c := coordtest.Start(t)
			pods := []*proctest.Container{wholePod(t, c, "a", atOnce), wholePod(t, c, "b", atOnce)}
			for _, p := range pods {
				p.File("train.py", spawner)
				p.File("words", "begins - - -\n")
				p.Start(command...)
				p.Out.Await(t, "begins - - -\n")
			}
			d := c.Lead("a", "b")
			first := c.Await(t, "a", "runs", runs(1, 1))
			if !first.WholeCommand || first.Ranks != 1 {
				t.Errorf("report %v", first)
			}
			c.Await(t, "b", "runs", runs(1, 1))
			if name == "spawn" {
				pods[0].Out.Await(t, "child 0 of ['--lr', '3'] here", "child 1 of")
			}
			if n := strings.Count(pods[0].Out.String(), "begins"); n != 1 {
				t.Errorf("it was begun %d times", n)
			}
			kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
			for _, p := range pods {
				r := c.Await(t, p.Name, "runs generation 2", runs(2, 1))
				p.Out.Until(t, func(have string) string {
					if strings.Count(have, "begins - - -\n") == 2 {
						return ""
					}
					return "second begin"
				})
				if n := commands(p, "train.py"); name == "spawn" && len(n) > 4 { // the script, two children, and Python's resource tracker
					t.Errorf("processes of two generations: %v", n)
				}
				if name == "binary" {
					defer kill(t, int(r.Rank[0].Pid), syscall.SIGKILL)
				}
			}
			if d.Restarts() != 1 {
				t.Errorf("%d restarts", d.Restarts())
			}
			if name == "binary" {
				return // it never ends
			}
			for _, p := range pods {
				p.File("finish", "")
			}
			for _, p := range pods {
				if code := p.Wait(); code != 0 || strings.Count(p.Out.String(), "ends\n") != 1 {
					t.Errorf("exit code %d", code)
				}
				if left := p.Processes(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// commands lists the pod's processes whose command line contains a word.
func commands(p *proctest.Container, word string) (found []string) {
	for _, cmd := range p.Processes() {
		if strings.Contains(cmd, word) || strings.Contains(cmd, "multiprocessing") {
			found = append(found, cmd)
		}
	}
	return found
}

// TestWholeCommandFailsForGood: the traceback is reported, and the container ends with the exit code of the verdict.
func TestWholeCommandFailsForGood(t *testing.T) {
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", "60")
	p.File("train.py", "raise ValueError('for good')")
	p.Start("python3", "train.py")
	run := &v1.Generation{Number: 1, WorldSize: 1, Nodes: 1}
	c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.Ranks == 1 })
	for run.Number = range uint64(3) {
		if run.Number == 0 {
			continue
		}
		c.Direct("a", &v1.Directive{Generation: run.Number, Order: v1.Order_ORDER_RUN, Run: run})
		r := c.Await(t, "a", "failed", func(r *v1.Report) bool { return r.State == v1.State_STATE_FAILED && r.Generation == run.Number })
		if e := r.Rank[0].Exit; e.GetCode() != 1 || !strings.Contains(e.GetTraceback(), "ValueError: for good") {
			t.Errorf("generation %d: exit %v", run.Number, e)
		}
		run = &v1.Generation{Number: run.Number, WorldSize: 1, Nodes: 1, RestartCount: 1}
	}
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_EXIT, ExitCode: 1})
	if code := p.Wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(p.Errs.String(), "ValueError: for good"); n != 2 {
		t.Errorf("it ran %d times", n)
	}
}

const patient = `
import os, signal, sys, time
def term(*a):
    os.write(1, b"saving\n")
    time.sleep(1)
    os.write(1, b"saved\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
signal.signal(signal.SIGUSR2, lambda *a: os.write(1, b"got USR2\n"))
signal.signal(signal.SIGUSR1, lambda *a: sys.exit(0))
os.write(1, b"ready %s\n" % os.environb.get(b"HOLDFAST_GENERATION", b"-"))
while True: time.sleep(0.01)
`

// TestWholeCommandHasItsGrace: the agent of a terminating pod sends SIGTERM to the command once, in its first and in a later run. The
// container ends with the command's exit code, unless the agent is ordered to exit before that because another pod replaces its pod.
func TestWholeCommandHasItsGrace(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(strconv.FormatBool(second), func(t *testing.T) {
			c := coordtest.Start(t)
			p := wholePod(t, c, "a", atOnce)
			p.File("train.py", patient)
			p.Start("python3", "train.py")
			g, want := c.Lead("a"), 143
			r := c.Await(t, "a", "runs", runs(1, 1))
			p.Out.Await(t, "ready -")
			if second {
				kill(t, int(r.Rank[0].Pid), syscall.SIGKILL)
				p.Out.Await(t, "ready 2")
				g.Unlead()
				want = 0
			}
			kill(t, p.Init.Process.Pid, syscall.SIGUSR2)
			p.Out.Await(t, "got USR2")
			kill(t, p.Init.Process.Pid, syscall.SIGTERM)
			if code := p.Wait(); code != want || strings.Count(p.Out.String(), "saving\nsaved\n") != 1 || strings.Count(p.Out.String(), "saving") != 1 {
				t.Errorf("exit code %d", code)
			}
			if r := c.Report("a"); !r.Terminating || r.State != v1.State_STATE_HALTED {
				t.Errorf("last report %v", r)
			}
		})
	}
}

// TestAgentOfAWholeCommandDies: in each stage the next agent continues with the same processes.
func TestAgentOfAWholeCommandDies(t *testing.T) {
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", atOnce)
	p.File("train.py", patient)
	p.Start("python3", "train.py")
	p.Out.Await(t, "ready -")
	comes := func(n uint64) *v1.Report {
		return c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == n })
	}
	c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.WholeCommand })
	kill(t, p.AgentPID(), syscall.SIGKILL)
	comes(2)
	c.Lead("a")
	first := c.Await(t, "a", "runs", runs(1, 1))
	kill(t, p.AgentPID(), syscall.SIGKILL)
	if r := comes(3); r.State != v1.State_STATE_RUNNING || r.Rank[0].Pid != first.Rank[0].Pid {
		t.Fatalf("not taken over: %v", r)
	}
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "runs generation 2", runs(2, 1))
	p.Out.Await(t, "ready 2")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	if r := comes(4); r.State != v1.State_STATE_RUNNING || r.Rank[0].Pid != second.Rank[0].Pid {
		t.Fatalf("not taken over: %v", r)
	}
	kill(t, p.AgentPID(), syscall.SIGKILL)
	kill(t, int(second.Rank[0].Pid), syscall.SIGUSR1) // the command ends well while no agent runs
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// runAnew returns a pod whose command was adopted and is in its second run. The command prints a line when it starts.
func runAnew(t *testing.T, command ...string) (*coordtest.Coordinator, *proctest.Container) {
	t.Helper()
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", atOnce)
	p.Start(command...)
	c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.WholeCommand })
	p.Out.Lines(t, 1)
	c.Direct(
		"a",
		&v1.Directive{Generation: 1, Order: v1.Order_ORDER_RUN, Run: &v1.Generation{Number: 1, WorldSize: 1, Nodes: 1, RestartCount: 1}},
	)
	c.Await(t, "a", "runs it anew", runs(1, 1))
	p.Out.Lines(t, 2)
	return c, p
}

// TestLaterRunsHaveTheSameEnvironment: later runs of a command have the environment of the run that init started, except the variables of
// the generation.
func TestLaterRunsHaveTheSameEnvironment(t *testing.T) {
	_, p := runAnew(t, "sh", "-c", "echo $(env | sort | tr '\n' ' '); while :; do sleep 0.01; done")
	lines := p.Out.Lines(t, 2)
	first, later := strings.Fields(lines[0]), strings.Fields(lines[1])
	var more []string
	for _, variable := range later {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains(first, variable) {
			more = append(more, name)
		}
	}
	if want := []string{"HOLDFAST_GENERATION", "HOLDFAST_MARK"}; !slices.Equal(more, want) {
		t.Errorf("later runs have %v that the first one has not, want %v", more, want)
	}
}

// TestSignalsReachTheLaterRun: init forwards signals to the present run of the command.
func TestSignalsReachTheLaterRun(t *testing.T) {
	_, p := runAnew(t, "bash", "-c", "trap 'echo got USR1 in $HOLDFAST_GENERATION' USR1; echo ready; while :; do sleep 0.01; done")
	kill(t, p.Init.Process.Pid, syscall.SIGUSR1)
	p.Out.Await(t, "got USR1 in 1")
}

// TestInitDiesWhileACommandEnds: when init dies, the agent dies too. In a pod with one process namespace the processes of other containers
// have the same reaper then. The agent does not end them.
func TestInitDiesWhileACommandEnds(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	beside := exec.Command("sleep", "1000")
	if err := beside.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = beside.Process.Wait() })
	t.Cleanup(func() { _ = beside.Process.Kill() })
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", atOnce)
	p.Start("sh", "-c", "trap 'echo asked' TERM; echo begins; while :; do sleep 0.01; done")
	c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.WholeCommand })
	p.Out.Lines(t, 1)
	agent := p.AgentPID()
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	p.Out.Await(t, "asked") // the agent waits for the end of the command's grace period
	kill(t, p.Init.Process.Pid, syscall.SIGKILL)
	var status unix.WaitStatus
	eventually.Holds(t, "the end of the agent, which is this process's child by then", func() (bool, any) {
		pid, err := unix.Wait4(agent, &status, unix.WNOHANG, nil)
		return pid == agent, err
	})
	if !status.Signaled() || status.Signal() != unix.SIGKILL {
		t.Errorf("the agent ended with %v", status)
	}
	if pid, err := unix.Wait4(beside.Process.Pid, &status, unix.WNOHANG, nil); pid != 0 || err != nil {
		t.Errorf("what ran beside it ended: %v, %v", status, err)
	}
}

// TestAgentDiesBeforeItStartsACommand: the next agent starts the command, and no rank counts as lost.
func TestAgentDiesBeforeItStartsACommand(t *testing.T) {
	c, p := runAnew(t, "sh", "-c", "echo begins; while [ ! -e finish ]; do sleep 0.01; done")
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	c.Await(t, "a", "has halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	// init starts no agent until the stored state is that of an agent that has accepted generation 2
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
	state := left["state"].(map[string]any)
	state["generation"], state["phase"], state["clean"] = 2, "Running", false
	state["run"] = map[string]any{"number": 2, "worldSize": 1, "nodes": 1, "restartCount": 2}
	state["rank"] = []any{map[string]any{}}
	raw, _ = json.Marshal(left)
	p.File(file, string(raw))
	p.File("finish", "")
	kill(t, p.Init.Process.Pid, syscall.SIGCONT)
	c.Direct(
		"a",
		&v1.Directive{Generation: 2, Order: v1.Order_ORDER_RUN, Run: &v1.Generation{Number: 2, WorldSize: 1, Nodes: 1, RestartCount: 1}},
	)
	r := c.Await(t, "a", "has ended", func(r *v1.Report) bool {
		return r.Incarnation == 2 && (r.State == v1.State_STATE_FINISHED || r.State == v1.State_STATE_FAILED)
	})
	if r.State != v1.State_STATE_FINISHED {
		t.Errorf("report %v", r)
	}
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_EXIT})
	if code := p.Wait(); code != 0 { // Wait returns after all output of the container was read
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(p.Out.String(), "begins"); n != 3 {
		t.Errorf("it was begun %d times", n)
	}
}

// TestCommandEndsWhileThereIsNoAgent: a command ends while no agent runs. The next agent adopts its end.
func TestCommandEndsWhileThereIsNoAgent(t *testing.T) {
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", "600")
	p.Start("sh", "-c", "while [ ! -e fail ]; do sleep 0.01; done; exit 9")
	c.Await(t, "a", "is there", func(r *v1.Report) bool { return true })
	p.File("fail", "")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	r := c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.WholeCommand && r.Rank[0].Exit != nil })
	if r.Rank[0].Exit.Code != 9 {
		t.Errorf("exit %v", r.Rank[0].Exit)
	}
	c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_EXIT, ExitCode: 9})
	if code := p.Wait(); code != 9 {
		t.Errorf("exit code %d", code)
	}
}

// TestExitCodeThatCannotBeLeft: if the agent cannot write the exit code, the container does not end with the code of the command's first
// run instead.
func TestExitCodeThatCannotBeLeft(t *testing.T) {
	for blocked, said := range map[string]string{"agent.json": "storing the agent's state", "code": "leaving the container's exit code"} {
		t.Run(blocked, func(t *testing.T) {
			c := coordtest.Start(t)
			p := wholePod(t, c, "a", "600")
			p.Start("sh", "-c", "exit 9")
			c.Await(t, "a", "is adopted", func(r *v1.Report) bool { return r.WholeCommand && r.Rank[0].Exit != nil })
			part := p.Root + "/run/" + blocked + ".new"
			if err := os.Mkdir(part, 0o755); err != nil {
				t.Fatal(err)
			}
			c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_EXIT, ExitCode: 5})
			p.Errs.Await(t, said)
			if blocked == "agent.json" {
				c.Await(t, "a", "says what it cannot do", func(r *v1.Report) bool {
					return slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, "the agent cannot store its state") })
				})
			}
			if err := os.Remove(part); err != nil {
				t.Fatal(err)
			}
			if code := p.Wait(); code != 5 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestLateLauncher: a launcher that starts late is served during the command's first run, on all pods of the gang. After that run it is
// refused with the remedy.
func TestLateLauncher(t *testing.T) {
	late := func(t *testing.T, c *coordtest.Coordinator, name string) *proctest.Container {
		p := wholePod(t, c, name, atOnce)
		p.File("train.py", "print('trained')")
		p.Start("sh", "-c", "while [ ! -e prepared ]; do sleep 0.01; done; torchrun --nproc-per-node=2 train.py; echo code $?")
		c.Await(t, name, "is adopted", func(r *v1.Report) bool { return r.WholeCommand && r.Ranks == 1 })
		return p
	}
	for _, inGeneration := range []bool{false, true} {
		t.Run(fmt.Sprintf("served %v", inGeneration), func(t *testing.T) {
			c := coordtest.Start(t)
			p := late(t, c, "a")
			if inGeneration {
				c.Lead("a")
				c.Await(t, "a", "runs", runs(1, 1))
			}
			p.File("prepared", "")
			if !inGeneration {
				c.Await(t, "a", "has a launcher", func(r *v1.Report) bool { return !r.WholeCommand && r.Ranks == 2 })
				c.Lead("a")
			}
			if code := p.Wait(); code != 0 || strings.Count(p.Out.String(), "trained") != 2 || !strings.Contains(p.Out.String(), "code 0") {
				t.Errorf("exit code %d", code)
			}
			if _, err := os.Stat(p.Root + "/run/held"); err == nil {
				t.Error("the command is still taken over")
			}
		})
	}
	t.Run("two pods", func(t *testing.T) {
		c := coordtest.Start(t)
		pods := []*proctest.Container{late(t, c, "a"), late(t, c, "b")}
		d := c.Lead("a", "b")
		c.Await(t, "a", "runs", runs(1, 1))
		c.Await(t, "b", "runs", runs(1, 1))
		pods[0].File("prepared", "")
		c.Await(t, "a", "has a launcher", func(r *v1.Report) bool { return !r.WholeCommand && r.Ranks == 2 })
		c.Await(t, "b", "is released", func(r *v1.Report) bool { return !r.WholeCommand && r.State == v1.State_STATE_HALTED })
		kill(t, pods[1].AgentPID(), syscall.SIGKILL) // the next agent does not take the command for a rank either
		c.Await(t, "b", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation == 2 && !r.WholeCommand })
		pods[1].File("prepared", "")
		for _, p := range pods {
			if code := p.Wait(); code != 0 || strings.Count(p.Out.String(), "trained") != 2 || strings.Count(p.Out.String(), "code 0") != 1 {
				t.Errorf("exit code %d", code)
			}
		}
		if n := d.Restarts(); n != 0 {
			t.Errorf("%d failures counted", n)
		}
	})
	t.Run("another number of nodes", func(t *testing.T) {
		c := coordtest.Start(t)
		p := wholePod(t, c, "a", atOnce)
		p.File("train.py", "print('trained')")
		p.Start("sh", "-c", "while [ ! -e prepared ]; do sleep 0.01; done; torchrun --nnodes=2 train.py; echo code $?; while [ ! -e finish ]; do sleep 0.01; done")
		d := c.Lead("a")
		c.Await(t, "a", "runs", runs(1, 1))
		p.File("prepared", "")
		p.Out.Await(t, "code 2")
		p.Errs.Await(t, "--nnodes=2: requests 2, the gang has 1 pods")
		p.File("finish", "")
		if code, n := p.Wait(), d.Restarts(); code != 0 || n != 0 {
			t.Errorf("exit code %d, %d failures counted", code, n)
		}
	})
	t.Run("refused", func(t *testing.T) {
		c := coordtest.Start(t)
		a, b := wholePod(t, c, "a", atOnce), wholePod(t, c, "b", atOnce)
		for _, p := range []*proctest.Container{a, b} {
			p.Start("sh", "-c", "if [ -e again ]; then torchrun train.py; echo code $?; fi; while ! rm fails 2>/dev/null; do sleep 0.01; done; exit 3")
		}
		c.Lead("a", "b")
		c.Await(t, "a", "runs", runs(1, 1))
		a.File("again", "")
		b.File("fails", "")
		a.Out.Await(t, "code 2")
		a.Errs.Await(t, "holdfast: the whole command of this container is one rank already", "holdfast.dev/enabled")
	})
}

// TestUnprotectedIsSaid: until a launcher starts, a note says that the command runs without protection.
func TestUnprotectedIsSaid(t *testing.T) {
	t.Parallel() // the command sleeps for a minute
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", "print('trained')")
	p.File("prepare.py", "import os, time\nwhile not os.path.exists('prepared'): time.sleep(0.01)")
	p.Start("sh", "-c", "python3 prepare.py && torchrun train.py")
	r := c.Await(t, "a", "says what runs", func(r *v1.Report) bool { return r.Unprotected != "" })
	for _, want := range []string{"sh -c 'python3 prepare.py && torchrun train.py'", "now running: python3 prepare.py"} {
		if !strings.Contains(r.Unprotected, want) {
			t.Errorf("no %q in %q", want, r.Unprotected)
		}
	}
	if r.Ranks != 0 || r.WholeCommand {
		t.Errorf("report %v", r)
	}
	p.Errs.Await(t, "holdfast: "+r.Unprotected+"\n")
	p.File("prepared", "")
	c.Await(t, "a", "has ranks", func(r *v1.Report) bool { return r.Unprotected == "" && r.Ranks == 1 })
	c.Lead("a")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestACopyBecomesItsCommand: kubectl debug --copy-to copies the variables and drops the label from which HOLDFAST_GANG comes. The copied
// container then runs only its command.
func TestACopyBecomesItsCommand(t *testing.T) {
	p := newPod(t, nil, "copy")
	p.Coordinator("127.0.0.1:1", "")
	p.Env["HOLDFAST_GANG"] = ""
	p.Start("sh", "-c", "exit 3")
	if code := p.Wait(); code != 3 || p.Errs.String() != "" {
		t.Errorf("code %d, said %q", code, p.Errs)
	}
}
