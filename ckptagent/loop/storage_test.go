//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// saver is a script that saves every few milliseconds and prints each step.
const saver = `
import os, time, holdfast
state = bytearray(4096)
ck = holdfast.attach()
ck.track(state={"s": state})
start = ck.restore()
os.write(1, b"start %d\n" % start)
for step in range(start + 1, 10**9):
    state[:8] = step.to_bytes(8, "little")
    ck.save(step)
    os.write(1, b"step %d\n" % step)
    time.sleep(0.005)
`

func newest(r *v1.Report) uint64 {
	if len(r.Rank) == 0 || len(r.Rank[0].Sealed) == 0 {
		return 0
	}
	return r.Rank[0].Sealed[len(r.Rank[0].Sealed)-1]
}

// lead sends a directive for the pod's generation of one rank; change modifies it.
func lead(c *coordtest.Coordinator, order v1.Order, change func(*v1.Directive)) {
	d := &v1.Directive{Generation: 1, Order: order}
	if order == v1.Order_ORDER_RUN {
		d.Run = &v1.Generation{Number: 1, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1"}
	}
	if change != nil {
		change(d)
	}
	c.Direct("a", d)
}

func savingPod(t *testing.T) (*coordtest.Coordinator, *proctest.Container) {
	needPython(t)
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"], p.Env["HOLDFAST_GRACE_SECONDS"] = "65536", "1", "40"
	p.Env["HOLDFAST_STORAGE"], p.Env["HOLDFAST_GANG"], p.Env["HOLDFAST_JOB_UID"] = filepath.Join(p.Dir, "claim"), "llama", "uid"
	if err := os.Mkdir(p.Env["HOLDFAST_STORAGE"], 0o755); err != nil {
		t.Fatal(err)
	}
	p.File("train.py", saver)
	return c, p
}

// successor returns another pod of the same job with the same storage, which replaces p.
func successor(t *testing.T, c *coordtest.Coordinator, p *proctest.Container) *proctest.Container {
	t.Helper()
	next := newPod(t, c, "a")
	for k, v := range p.Env {
		if k != "HOLDFAST_POD_UID" {
			next.Env[k] = v
		}
	}
	next.Env["HOLDFAST_POD_UID"] = "another"
	next.File("train.py", saver)
	return next
}

// follow sets commonStep and reclaimBelow to the rank's newest sealed step, as a coordinator of one rank does, until is returns true.
func follow(t *testing.T, c *coordtest.Coordinator, what string, change func(*v1.Directive), is func(*v1.Report) bool) *v1.Report {
	t.Helper()
	for deadline := time.Now().Add(eventually.Timeout); ; {
		before := newest(c.Report("a"))
		lead(c, v1.Order_ORDER_RUN, func(d *v1.Directive) {
			d.CommonStep, d.ReclaimBelow = before, before
			if change != nil {
				change(d)
			}
		})
		r := c.Await(t, "a", "is there", func(r *v1.Report) bool { return is(r) || newest(r) != before || time.Now().After(deadline) })
		if is(r) {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s; %v", eventually.Timeout, what, r)
		}
	}
}

// TestHoldCopyHaltFetch: the rank of a drained pod is held in its save, also while its agent dies. The step is copied, the pod ends, and
// its replacement fetches the step.
func TestHoldCopyHaltFetch(t *testing.T) {
	c, p := savingPod(t)
	c.Direct("a", &v1.Directive{Order: v1.Order_ORDER_WAIT})
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "is ready and has storage", func(r *v1.Report) bool { return r.Ranks == 1 && r.Storage && r.GraceSeconds == 40 })
	lead(c, v1.Order_ORDER_RUN, nil)
	r := follow(t, c, "ten steps", nil, func(r *v1.Report) bool { return newest(r) >= 10 })
	hold := newest(r) + 5
	held := func(r *v1.Report) bool { return newest(r) >= hold }
	r = follow(t, c, "held", func(d *v1.Directive) { d.BarrierStep = hold }, held)
	at := newest(r)
	p.Out.Await(t, fmt.Sprintf("step %d\n", at-1)) // the rank is held in the save after this step
	steps := strings.Count(p.Out.String(), "step ")
	kill(t, p.AgentPID(), syscall.SIGKILL)
	kill(t, p.Init.Process.Pid, syscall.SIGTERM)
	c.Await(t, "a", "leaves and trains on", func(r *v1.Report) bool {
		return r.Incarnation == 2 && r.Terminating && r.State == v1.State_STATE_RUNNING && newest(r) == at
	})
	mark := &v1.Mark{Step: at, Generation: 1}
	drain := func(d *v1.Directive) { d.BarrierStep, d.Copy, d.CommonStep, d.ReclaimBelow = hold, mark, at, at }
	lead(c, v1.Order_ORDER_RUN, drain)
	r = c.Await(t, "a", "has copied", func(r *v1.Report) bool { return r.Rank[0].GetCopied().GetMark().GetStep() == at })
	if now := strings.Count(p.Out.String(), "step "); now != steps || newest(r) != at {
		t.Errorf("%d steps more while it was held at %d, newest sealed %d", now-steps, at, newest(r))
	}
	lead(c, v1.Order_ORDER_HALT, drain)
	if code := p.Wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}

	next := successor(t, c, p)
	c.Forget("a")
	lead(c, v1.Order_ORDER_HALT, func(d *v1.Directive) {
		d.Run, d.Fetch = &v1.Generation{WorldSize: 1}, &v1.Mark{Step: at + 1, Generation: 1}
	})
	next.Start("torchrun", "train.py")
	c.Await(t, "a", "cannot fetch a step that was never copied", func(r *v1.Report) bool { return r.FetchFailed.GetStep() == at+1 })
	lead(c, v1.Order_ORDER_HALT, func(d *v1.Directive) { d.Run, d.Fetch = &v1.Generation{WorldSize: 1}, mark })
	c.Await(t, "a", "has fetched", func(r *v1.Report) bool { return newest(r) == at })
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_RUN,
		Run: &v1.Generation{Number: 2, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", RestoreStep: at}})
	next.Out.Await(t, "start "+strconv.FormatUint(at, 10))
	c.Await(t, "a", "goes on", func(r *v1.Report) bool { return newest(r) > at })
	c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_EXIT})
	if code := next.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestHoldIsLifted: a held rank continues when the coordinator withdraws the barrier step.
func TestHoldIsLifted(t *testing.T) {
	c, p := savingPod(t)
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "runs", runs(1, 1))
	r := follow(t, c, "held", func(d *v1.Directive) { d.BarrierStep = 5 }, func(r *v1.Report) bool { return newest(r) >= 5 })
	at := newest(r)
	follow(t, c, "goes on", nil, func(r *v1.Report) bool { return newest(r) > at+5 })
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT})
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestKilledBetweenManifestAndReport: the agent dies after the manifest has its final name and before the report. The next agent, which has
// the same order, finds the step complete or completes it, and reports it.
func TestKilledBetweenManifestAndReport(t *testing.T) {
	c, p := savingPod(t)
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "runs", runs(1, 1))
	mark := &v1.Mark{Step: newest(follow(t, c, "ten steps", nil, func(r *v1.Report) bool { return newest(r) >= 10 })), Generation: 1}
	order := func(m *v1.Manifest) {
		lead(c, v1.Order_ORDER_RUN, func(d *v1.Directive) {
			d.Copy, d.CommonStep, d.ReclaimBelow, d.Manifest = mark, mark.Step, mark.Step, m
		})
	}
	order(nil)
	copied := c.Await(t, "a", "has copied", func(r *v1.Report) bool { return r.Rank[0].GetCopied().GetMark().GetStep() == mark.Step }).Rank[0].Copied

	// A folder has the name of the manifest, so that the manifest waits. Then the state cannot be stored, so that nothing is reported.
	manifest := filepath.Join(p.Env["HOLDFAST_STORAGE"], "llama-uid", format.GenerationFolder(1), format.ManifestName(int64(mark.Step)))
	if err := os.Mkdir(manifest, 0o755); err != nil {
		t.Fatal(err)
	}
	order(&v1.Manifest{Mark: mark, Rank: []*v1.ManifestRank{{Length: copied.Length, Checksum: copied.Checksum}}})
	p.Errs.Await(t, "writing a manifest: ")
	part := filepath.Join(p.Root, "run", "agent.json.new")
	eventually.Holds(t, "the agent's state cannot be stored", func() (bool, any) { err := os.Mkdir(part, 0o755); return err == nil, err })
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the manifest is written", func() (bool, any) { return whole(manifest), manifest })
	kill(t, p.AgentPID(), syscall.SIGKILL)
	if r := c.Report("a"); r.Incarnation != 1 || r.Manifested != nil {
		t.Fatalf("it was told before the agent was killed: %v", r)
	}
	if err := os.Remove(part); err != nil {
		t.Fatal(err)
	}
	r := c.Await(t, "a", "says that the step is complete", func(r *v1.Report) bool { return r.Manifested.GetStep() == mark.Step })
	if r.Incarnation != 2 || r.State != v1.State_STATE_RUNNING || !whole(manifest) {
		t.Errorf("%v, the manifest is whole: %v", r, whole(manifest))
	}
}

// whole reports whether a manifest exists and is complete.
func whole(manifest string) bool {
	raw, err := os.ReadFile(manifest)
	if err == nil {
		_, err = format.DecodeManifest(raw)
	}
	return err == nil
}

// TestWritesBesideTheSeal: a copy that is expected is written before its order, and its slot stays while training goes on. The order
// completes the file; if the copy is no longer expected, it is removed.
func TestWritesBesideTheSeal(t *testing.T) {
	c, p := savingPod(t)
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "runs and has storage", func(r *v1.Report) bool { return runs(1, 1)(r) && r.Storage })
	folder := filepath.Join(p.Env["HOLDFAST_STORAGE"], "llama-uid", format.GenerationFolder(1))
	draft := func() (step uint64) {
		names, _ := os.ReadDir(folder)
		for _, name := range names {
			if kind, at := format.ParseFileName(name.Name()); kind == format.FilePart {
				step = uint64(at)
			}
		}
		return step
	}
	next := func(d *v1.Directive) { d.CopyNext = 1 }
	follow(t, c, "begins to write", next, func(*v1.Report) bool { return draft() > 0 })
	at := draft()
	follow(t, c, "trains on", next, func(r *v1.Report) bool { return newest(r) > at+10 })
	if now := draft(); now != at {
		t.Errorf("step %d is written instead of step %d, which no order has replaced", now, at)
	}
	order := func(d *v1.Directive) { d.Copy = &v1.Mark{Step: at, Generation: 1} }
	r := follow(t, c, "has copied", order, func(r *v1.Report) bool { return r.Rank[0].GetCopied().GetMark().GetStep() == at })
	raw, err := os.ReadFile(filepath.Join(folder, format.RankFileName(int64(at), 0)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := format.DecodeRankFile(raw)
	sum := format.Checksum(raw[format.RankFileData:])
	if err != nil || f.Step != int64(at) || f.Checksum != sum || r.Rank[0].Copied.Checksum != sum {
		t.Errorf("%+v, %v: the data has checksum %x, reported is %v", f, err, sum, r.Rank[0].Copied)
	}
	follow(t, c, "begins to write another", next, func(*v1.Report) bool { return draft() > at })
	lead(c, v1.Order_ORDER_RUN, nil)
	eventually.Holds(t, "what no order has taken is removed", func() (bool, any) { return draft() == 0, draft() })
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT})
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestStorageThatCannotBeUsedIsSaid: while storage cannot be used a note says so, and training runs. Storage is used once that is possible.
func TestStorageThatCannotBeUsedIsSaid(t *testing.T) {
	c, p := savingPod(t)
	claim := p.Env["HOLDFAST_STORAGE"]
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	p.File(claim, "not a folder")
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	r := c.Await(t, "a", "says that storage cannot be used", func(r *v1.Report) bool {
		return strings.Contains(strings.Join(r.Notes, "\n"), "storage cannot be used: ")
	})
	if r.Storage {
		t.Error("and that there is storage")
	}
	c.Await(t, "a", "runs", runs(1, 1))
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(claim, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Await(t, "a", "has storage", func(r *v1.Report) bool {
		return r.Storage && !strings.Contains(strings.Join(r.Notes, "\n"), "storage")
	})
}

// TestNothingIsDoneThatCannotBeStored: without its state file an agent starts nothing and reports nothing.
func TestNothingIsDoneThatCannotBeStored(t *testing.T) {
	c, p := savingPod(t)
	p.File("train.py", sleeper)
	part := filepath.Join(p.Root, "run", "agent.json.new") // the temporary name under which the state is written
	if err := os.MkdirAll(part, 0o755); err != nil {
		t.Fatal(err)
	}
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	p.Errs.Await(t, "storing the agent's state, without which nothing is done")
	if err := os.Remove(part); err != nil {
		t.Fatal(err)
	}
	c.Await(t, "a", "runs", runs(1, 1))
	p.Out.Await(t, "rank 0 generation 1")
	if err := os.MkdirAll(part, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	p.Errs.Await(t, "trying again: ")
	if r := c.Report("a"); r.State != v1.State_STATE_RUNNING {
		t.Errorf("told what is not stored: %v", r)
	}
	if err := os.Remove(part); err != nil {
		t.Fatal(err)
	}
	c.Await(t, "a", "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
}

// TestStateThatCannotBeRead: if the stored state cannot be read, the next agent ends all processes and reports. It then runs the next
// generation, not the same one again.
func TestStateThatCannotBeRead(t *testing.T) {
	c, p := savingPod(t)
	p.File("train.py", sleeper)
	lead(c, v1.Order_ORDER_RUN, nil)
	p.Start("torchrun", "train.py")
	first := c.Await(t, "a", "runs", runs(1, 1))
	p.Out.Await(t, "rank 0 generation 1")
	state := filepath.Join(p.Root, "run", "agent.json")
	for again := 1; again <= 2; again++ {
		if err := os.Remove(state); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.Mkdir(state, 0o755); err != nil { // a folder, which can neither be read as the state nor be replaced by it
			t.Fatal(err)
		}
		kill(t, p.AgentPID(), syscall.SIGKILL)
		eventually.Holds(t, "a new agent that says what it lost", func() (bool, any) {
			said := p.Errs.String()
			return strings.Count(said, "reading the state of the agent before, which is lost") >= again, said
		})
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
		r := c.Await(t, "a", "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation > first.Incarnation && r.Ranks == 1 && r.Generation == 1 })
		if r.State == v1.State_STATE_RUNNING {
			t.Errorf("generation 1 runs: %v", r)
		}
		first = r
	}
	if n := strings.Count(p.Out.String(), "generation 1"); n != 1 {
		t.Errorf("generation 1 was started %d times", n)
	}
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_HALT})
	c.Await(t, "a", "halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
	c.Direct(
		"a",
		&v1.Directive{Generation: 2, Order: v1.Order_ORDER_RUN, Run: &v1.Generation{Number: 2, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1"}},
	)
	p.Out.Await(t, "rank 0 generation 2")
}
