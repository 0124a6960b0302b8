//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/eventually"
)

// trial directs pods to make a trial while no generation runs.
func trial(c *coordtest.Coordinator, attempt uint32, seconds uint32, partners map[string]string, address string) {
	base, world := uint32(0), uint32(2*max(1, len(partners)))
	for _, pod := range []string{"a", "b"} {
		partner, in := partners[pod]
		if !in {
			continue
		}
		round := uint32(0)
		if partner != "" {
			round = 1
		}
		c.Direct(pod, &v1.Directive{Order: v1.Order_ORDER_WAIT, Trial: &v1.Trial{
			Id: &v1.TrialId{Check: 1, Round: round, Attempt: attempt, Partner: partner}, BaseRank: base, WorldSize: world, Store: address,
			ImportsSeconds: seconds, WithinSeconds: seconds,
		}})
		base += 2
	}
}

// answered reports whether the newest answer is to an attempt, with that outcome and a text that contains text.
func answered(attempt uint32, outcome, text string) func(*v1.Report) bool {
	return func(r *v1.Report) bool {
		for _, a := range r.Trials {
			if a.Id.Attempt == attempt {
				return a.Outcome == outcome && strings.Contains(a.Text, text)
			}
		}
		return false
	}
}

// TestTrialsOfTwoPods: each pod is tried alone and both together, with torch if python3 has it, else over TCP, and then ranks start.
func TestTrialsOfTwoPods(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	pods := map[string]string{"a": "pod-b", "b": "pod-a"}
	for name := range pods {
		p := newPod(t, c, name)
		p.File("train.py", "print('trained', flush=True)")
		p.Start("torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py")
	}
	var address string
	for name := range pods {
		r := c.Await(t, name, "waits", func(r *v1.Report) bool { return r.Ranks == 2 && r.Port > 0 })
		if name == "a" {
			address = fmt.Sprintf("127.0.0.1:%d", r.Port)
		}
		trial(c, 1, 60, map[string]string{name: ""}, fmt.Sprintf("127.0.0.1:%d", r.Port))
	}
	for name := range pods {
		c.Await(t, name, "passes alone", answered(1, "passed", ""))
	}
	trial(c, 2, 60, pods, address)
	for name := range pods {
		r := c.Await(t, name, "passes with the other", answered(2, "passed", ""))
		if r.Trials[len(r.Trials)-1].Speed <= 0 {
			t.Errorf("%s: no speed: %v", name, r.Trials)
		}
	}
	for _, pod := range []string{"a", "b"} {
		c.Direct(pod, &v1.Directive{Order: v1.Order_ORDER_WAIT})
	}
	c.Lead("a", "b")
	for name := range pods {
		c.Await(t, name, "runs, and reports no trial any more", func(r *v1.Report) bool { return r.Generation == 1 && len(r.Trials) == 0 })
	}
}

// wrong makes the multiplications of checks wrong.
const wrong = `
import sys
if any("holdfast_check" in a for a in sys.orig_argv):
    import torch
    multiply = torch.matmul
    def matmul(a, b):
        out = multiply(a, b)
        out[3, 5] += 1
        return out
    torch.matmul = matmul
`

// TestWrongPodIsReplaced: before the first generation the pods are tried, by the real coordinator. The one whose arithmetic is wrong is
// named and replaced, and the gang trains with the pod in its place.
func TestWrongPodIsReplaced(t *testing.T) {
	const torchPython = "/opt/holdfast-python/venv/bin/python3"
	if exec.Command(torchPython, "-c", "import torch").Run() != nil {
		t.Skip("SKIPPED: torch is not there: make prepare")
	}
	c := coordtest.Start(t)
	names := []string{"a", "b", "c"}
	start := func(name string, bad bool) *proctest.Container {
		p := newPod(t, c, name)
		p.Env["PATH"], p.Env["OMP_NUM_THREADS"] = filepath.Dir(torchPython)+":"+p.Env["PATH"], "1"
		if bad {
			p.File("sitecustomize.py", wrong)
			p.Env["PYTHONPATH"] = p.Dir + ":" + p.Env["PYTHONPATH"]
		}
		p.File("train.py", "print('trained', flush=True)")
		p.Start("torchrun", "--nnodes=3", "--nproc-per-node=1", "train.py")
		return p
	}
	g := c.LeadAndCheck(names...)
	for _, name := range names {
		start(name, name == "b")
	}
	eventually.Holds(t, "the check names a pod", func() (bool, any) { k := g.Check(); return k.Replaced == 1, k })
	k := g.Check()
	if !strings.Contains(k.Text, "pod b on node node") || !strings.Contains(k.Text, "of a product is") || c.Report("b").Generation > 0 {
		t.Errorf("named %q", k.Text)
	}
	c.Forget("b")
	start("b", false)
	for _, name := range names {
		c.Await(t, name, "runs", func(r *v1.Report) bool { return r.Generation == 1 })
	}
	if k = g.Check(); k.Result != elastic.CheckReplaced || k.Replaced != 1 {
		t.Errorf("check %+v", k)
	}
	t.Logf("%s", k.Describe(len(names)))
}

// hangs replaces the check: it begins a part, starts a process that has left its session, and hangs deaf to signals.
const hangs = `
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"part": "%s"}', flush=True)
subprocess.Popen(["sleep", "4242"], start_new_session=True)
time.sleep(600)
`

// TestForkThatDiesIsNoFinding: the rank's process then imports for itself, in the same trial.
func TestForkThatDiesIsNoFinding(t *testing.T) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", "")
	fakeTorch(t, p, "")
	p.File(filepath.Join(p.Root, "python", "holdfast_check.py"), `
import os, sys
if "alone" not in sys.orig_argv:
    os._exit(7)
print('{"outcome": "passed", "model": "own"}')
`)
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	c.Await(t, "a", "waits", func(r *v1.Report) bool { return r.Ranks == 2 && r.Port > 0 })
	trial(c, 1, 60, map[string]string{"a": ""}, "127.0.0.1:1")
	r := c.Await(t, "a", "passes", answered(1, "passed", ""))
	if r.Trials[0].Model != "own" {
		t.Errorf("answers %v", r.Trials)
	}
}

// fakeTorch makes torch a module with that text.
func fakeTorch(t *testing.T, p *proctest.Container, text string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(p.Dir, "torch"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.File("torch/__init__.py", text)
	p.File("torch/distributed.py", "")
	p.Env["PYTHONPATH"] = p.Dir
}

// sleeping returns how many processes of the check's tree live.
func sleeping(word string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && strings.Contains(string(raw), word) {
			n++
		}
	}
	return n
}

// TestHangingCheckIsKilled: with its tree, at its deadline, and what it was in is the finding. The agent's death ends it too. So it is with
// forks of a source, with processes that import for themselves, and with a source that hangs in an import. A generation ends the source.
func TestHangingCheckIsKilled(t *testing.T) {
	needPython(t)
	for name, c := range map[string]hanging{
		"forks":  {idle: 3, sleeps: 2, finding: "local rank 0: part matmul did not end within 3s"},
		"apart":  {torch: "raise ImportError", sleeps: 2, finding: "local rank 0: part matmul did not end within 3s"},
		"source": {torch: fmt.Sprintf(hangs, "import"), sleeps: 1, finding: "part import did not end within 3s"},
	} {
		t.Run(name, c.play)
	}
}

// hanging is a check that hangs, with a module torch of that text. idle is how many processes of its source wait, sleeps how many processes
// hang, and finding what the first trial finds.
type hanging struct {
	torch        string
	idle, sleeps int
	finding      string
}

func (h hanging) play(t *testing.T) {
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.File("train.py", "")
	fakeTorch(t, p, h.torch)
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	r := c.Await(t, "a", "waits", func(r *v1.Report) bool { return r.Ranks == 2 && r.Port > 0 })
	check, address := filepath.Join(p.Root, "python", "holdfast_check.py"), fmt.Sprintf("127.0.0.1:%d", r.Port)
	plant := func(part string) {
		if err := os.WriteFile(check, fmt.Appendf(nil, hangs, part), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(idle int) {
		eventually.Holds(t, "no process of the check is left", func() (bool, any) {
			return sleeping(check) == idle && sleeping("sleep\x004242") == 0, sleeping(check)
		})
	}
	begin := func(attempt uint32) {
		trial(c, attempt, 600, map[string]string{"a": ""}, address)
		eventually.Holds(t, "the check runs", func() (bool, any) { return sleeping("sleep\x004242") == h.sleeps, sleeping(check) })
	}
	plant("matmul")
	trial(c, 1, 3, map[string]string{"a": ""}, address)
	c.Await(t, "a", "answers what hung", func(r *v1.Report) bool {
		return answered(1, "failed", h.finding)(r) || answered(1, "late", h.finding)(r)
	})
	gone(h.idle)
	plant("import")
	trial(c, 2, 3, map[string]string{"a": ""}, address)
	c.Await(t, "a", "answers that imports are late", answered(2, "late", "import"))
	gone(h.idle)
	begin(3)
	kill(t, p.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "answers that the trial is lost", answered(3, "lost", ""))
	gone(0)
	begin(4)
	began := time.Now()
	c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_WAIT})
	c.Await(t, "a", "answers that the trial was ended", answered(4, "lost", ""))
	if h.sleeps == 2 { // else the source goes on with its import
		gone(h.idle)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	c.Lead("a")
	c.Await(t, "a", "runs", func(r *v1.Report) bool { return r.Generation == 1 })
	gone(0)
}
