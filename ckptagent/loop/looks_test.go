//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/internal/protocol"
)

// waits is a gang in which rank 1 sleeps and rank 0 waits for it.
const waits = `
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2, 3))
def load_batch():
    time.sleep(600)
print("waits", flush=True)
if dist.get_rank() == 1:
    load_batch()
dist.all_reduce(torch.ones(2, 3))
`

func in(l *v1.Look, function string) bool {
	return l.Stack == uint32(protocol.StackFresh) && slices.ContainsFunc(l.Frames, func(f *v1.Frame) bool { return f.Function == function })
}

// lookedAt reports whether a report answers a look at those ranks of an incarnation.
func lookedAt(incarnation, look uint64) func(*v1.Report) bool {
	return func(r *v1.Report) bool {
		if r.Incarnation != incarnation || r.Look != look || len(r.Looks) != 2 {
			return false
		}
		waiter, root := r.Looks[0], r.Looks[1]
		good := in(waiter, "all_reduce") && in(root, "load_batch") && len(waiter.Groups) == 1 && len(root.Groups) == 1
		return good && waiter.Groups[0].Open.GetSeq() == 2 && root.Groups[0].Open == nil && root.Groups[0].Enqueued == 1 &&
			root.Pid == r.Rank[1].Pid && waiter.CpuMs > 100 && root.Processes >= 1
	}
}

// TestLooksAtRanksThatWait: started cold and from standbys, and by an agent that follows one that was killed.
func TestLooksAtRanksThatWait(t *testing.T) {
	const torchPython = "/opt/holdfast-python/venv/bin/python3"
	if exec.Command(torchPython, "-c", "import torch").Run() != nil {
		t.Skip("SKIPPED: torch is not there: make prepare")
	}
	t.Parallel()
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["PATH"] = filepath.Dir(torchPython) + ":" + p.Env["PATH"]
	p.Env["HOLDFAST_STANDBYS"], p.Env["OMP_NUM_THREADS"] = "auto", "1"
	p.File("train.py", waits)
	g := c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	first := c.Await(t, "a", "has standbys", standbysReady(1, 2))
	kill(t, int(first.Rank[1].Pid), syscall.SIGKILL)
	second := c.Await(t, "a", "runs generation 2", runs(2, 2))
	for local, rank := range second.Rank {
		if !rank.FromStandby {
			t.Errorf("rank %d was started cold", local)
		}
	}
	p.Out.Lines(t, 4)
	g.Unlead()
	// A level: until the answer shows what the ranks come to, the next number is wanted.
	look := uint64(0)
	c.Await(t, "a", "answers a look", func(r *v1.Report) bool {
		if r.Look == look && !lookedAt(1, look)(r) {
			look++
			c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_WAIT, Look: look})
			return false
		}
		return lookedAt(1, look)(r)
	})
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_WAIT, Look: look, Keep: look})
	c.Await(t, "a", "keeps files", func(r *v1.Report) bool { return r.Kept == look })
	for name, want := range map[string]string{
		"rank-0.stack.txt": "in all_reduce", "rank-1.stack.txt": "in load_batch", "rank-0.gloo.json": "gloo:all_reduce", "gloo.rank-1": "pg_config",
	} {
		raw, err := os.ReadFile(filepath.Join(p.Root, "run", "hangs", fmt.Sprintf("2-%d", look), name))
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %v: %s", name, err, raw)
		}
	}
	kill(t, p.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "answers it by the next agent", lookedAt(2, look))
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_WAIT})
	c.Await(t, "a", "reports no look any more", func(r *v1.Report) bool { return r.Look == look && len(r.Looks) == 0 })
}

// TestLooksAtAWholeCommand: without a process group and a launcher, what the processes do is reported alone.
func TestLooksAtAWholeCommand(t *testing.T) {
	c := coordtest.Start(t)
	p := wholePod(t, c, "a", atOnce)
	g := c.Lead("a")
	p.Start("bash", "-c", "sleep 600 & wait")
	c.Await(t, "a", "runs", func(r *v1.Report) bool {
		return r.WholeCommand && r.Generation == 1 && len(r.Rank) == 1 && r.Rank[0].Pid != 0
	})
	g.Unlead()
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_WAIT, Look: 9})
	c.Await(t, "a", "answers a look", func(r *v1.Report) bool {
		if r.Look != 9 || len(r.Looks) != 1 {
			return false
		}
		l := r.Looks[0]
		return l.Stack == uint32(protocol.StackNone) && l.State == 'S' && l.Processes == 2
	})
}

// evaluates opens a phase in rank 0 of the first generation.
const evaluates = `
import os, time
import holdfast
ck = holdfast.attach()
if os.environ["RANK"] + os.environ["HOLDFAST_GENERATION"] == "01":
    ck.phase("evaluation", up_to=1200)
print("works", flush=True)
time.sleep(600)
`

// TestLooksAtPhases: a look has the phase of the rank that opened one. The rank's next process, here of a standby, has none.
func TestLooksAtPhases(t *testing.T) {
	needPython(t)
	t.Parallel()
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STANDBYS"] = "auto"
	p.File("train.py", evaluates)
	g := c.Lead("a")
	p.Start("torchrun", "--nproc-per-node=2", "train.py")
	first := c.Await(t, "a", "has standbys", standbysReady(1, 2))
	look := func(generation, look uint64, phase bool) {
		t.Helper()
		g.Unlead()
		c.Direct("a", &v1.Directive{Generation: generation, Order: v1.Order_ORDER_WAIT, Look: look})
		r := c.Await(t, "a", "answers a look", func(r *v1.Report) bool { return r.Look == look && len(r.Looks) == 2 })
		open := r.Looks[0].Phase
		if (open != nil) != phase || r.Looks[1].Phase != nil {
			t.Fatalf("generation %d: the phases are %v, %v", generation, open, r.Looks[1].Phase)
		}
		if phase && (open.Name != "evaluation" || open.OfMs != 1_200_000 || open.LeftMs > open.OfMs || open.LeftMs < 1_000_000) {
			t.Errorf("the phase is %v", open)
		}
	}
	look(1, 1, true)
	g = c.Lead("a")
	kill(t, int(first.Rank[0].Pid), syscall.SIGKILL)
	c.Await(t, "a", "runs generation 2", runs(2, 2))
	p.Out.Lines(t, 4)
	look(2, 2, false)
}
