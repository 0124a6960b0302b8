//go:build linux

package loop_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

// asleep is a script without the client. It imports a module late, another one while it has a model, disables garbage collection and
// sleeps.
const asleep = `
import gc, time
gc.disable()
time.sleep(1)
import json, decimal, xml.dom.minidom
time.sleep(1)
model = b"x" * (200 << 20)
import wave
print("asleep", flush=True)
time.sleep(600)
`

func standbysReady(generation uint64, ranks int) func(*v1.Report) bool {
	return func(r *v1.Report) bool {
		ready := len(r.Rank) == ranks && r.Generation == generation
		for _, rank := range r.Rank {
			ready = ready && rank.StandbyReady
		}
		return ready
	}
}

func TestStandbysOfAScriptThatTellsNothing(t *testing.T) {
	needPython(t)
	t.Parallel()
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", asleep)
	c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	first := c.Await(t, "a", "has standbys", standbysReady(1, 2))
	known, err := os.ReadFile(filepath.Join(p.Root, "run", "modules.json"))
	if err != nil || !strings.Contains(string(known), `"xml.dom.minidom"`) || strings.Contains(string(known), "_holdfast") {
		t.Errorf("standbys import %s: %v", known, err)
	}
	var took struct{ Memory uint64 }
	if err := json.Unmarshal(known, &took); err != nil || took.Memory < 1<<20 || took.Memory > 100<<20 {
		t.Errorf("what they import took %d MiB in a rank with a model of 200 MiB: %v", took.Memory>>20, err)
	}
	kill(t, int(first.Rank[1].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "runs generation 2", runs(2, 2))
	for local, rank := range second.Rank {
		if !rank.FromStandby {
			t.Errorf("rank %d was started cold", local)
		}
	}
	p.Out.Lines(t, 4)
}

// pretended has torch's hook for all optimizers, and an optimizer that counts its steps in its state. The optimizer continues from the
// count that an earlier run wrote to a file. It begins once a file exists.
const pretended = `
import os, sys, time
sys.path.insert(0, "lib/site-packages")
from torch.optim.optimizer import Optimizer
class Adam(Optimizer): pass
optimizer = Adam()
kept = "kept-" + os.environ["RANK"]
done = int(open(kept).read()) if os.path.exists(kept) else 0
optimizer.state = {1: {"step": done}}
while True:
    time.sleep(0.02)
    optimizer.state[1]["step"] += 1
    optimizer.step()
    with open(kept + ".new", "w") as f:
        f.write(str(optimizer.state[1]["step"]))
    os.replace(kept + ".new", kept)
`

// pretendTorch writes the script, and the part of torch that the script uses.
func pretendTorch(t testing.TB, p *proctest.Container) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(p.Dir, "lib/site-packages/torch/optim"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.File("lib/site-packages/torch/__init__.py", "__version__ = \"2.15.0\"\nclass compiler:\n    is_compiling = staticmethod(lambda: False)\nclass Tensor: pass\ndevice = str\n")
	p.File("lib/site-packages/torch/optim/__init__.py", "")
	p.File("lib/site-packages/torch/optim/optimizer.py", `
hooks = []
register_optimizer_step_post_hook = hooks.append
class Optimizer:
    profile_hook_step = staticmethod(lambda f: Optimizer.step)
    def step(self):
        for hook in hooks: hook(self, (), {})
`)
	p.File("train.py", pretended)
}

func TestOptimizerStepsAreReported(t *testing.T) {
	needPython(t)
	t.Parallel()
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	pretendTorch(t, p)
	c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	counted := func(incarnation, generation, above uint64, resumed func(at *uint64) bool) func(*v1.Report) bool {
		return func(r *v1.Report) bool {
			good := len(r.Rank) == 2 && r.Generation == generation && r.Incarnation == incarnation && r.Timeline.FirstStep != 0
			for _, rank := range r.Rank {
				good = good && rank.OptimizerSteps > above && resumed(rank.ResumedAt)
			}
			return good
		}
	}
	beginning := func(at *uint64) bool { return at != nil && *at == 0 }
	first := c.Await(t, "a", "tells steps", counted(1, 1, 5, beginning))
	kill(t, p.AgentPID(), syscall.SIGKILL)
	again := c.Await(t, "a", "tells steps by the next agent", counted(2, 1, first.Rank[0].OptimizerSteps, beginning))
	if again.Timeline.FirstStep != first.Timeline.FirstStep {
		t.Errorf("the first step was at %d, and at %d for the next agent", first.Timeline.FirstStep, again.Timeline.FirstStep)
	}
	kill(t, int(again.Rank[1].Pid), syscall.SIGKILL)
	c.Await(t, "a", "tells where generation 2 went on", counted(2, 2, 2, func(at *uint64) bool { return at != nil && *at > 5 }))
}

// TestOptimizerStepsOfAWholeCommand: steps are counted in the run that init started and in the run that the agent starts.
func TestOptimizerStepsOfAWholeCommand(t *testing.T) {
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", atOnce)
	p.Env["RANK"] = "0"
	pretendTorch(t, p)
	c.Lead("a")
	p.Start("python3", "train.py")
	stepped := func(generation, incarnation uint64) func(*v1.Report) bool {
		return func(r *v1.Report) bool {
			return r.Generation == generation && r.Incarnation == incarnation && r.WholeCommand && len(r.Rank) == 1 &&
				r.Rank[0].OptimizerSteps > 5 &&
				r.Timeline.FirstStep != 0
		}
	}
	c.Await(t, "a", "tells steps", stepped(1, 1))
	kill(t, p.AgentPID(), syscall.SIGKILL)
	first := c.Await(t, "a", "tells steps by the next agent", stepped(1, 2))
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "tells steps of generation 2", stepped(2, 2))
	if at := second.Rank[0].ResumedAt; at == nil || *at < 5 {
		t.Errorf("generation 2 goes on from %v", at)
	}
}
