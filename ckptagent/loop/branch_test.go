//go:build linux

package loop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

// keeper is a script that skips no save: it waits for a slot until the test has reported the common step.
const keeper = "import holdfast._client\nholdfast._client._SAVE_WAIT = 3600\n" + saver

// TestABranchInMemoryAndStorage runs a real rank in a generation of branch 1. The rank's saves are reported, copied and listed in a
// manifest as steps of that branch. A replacement pod, which may hold a step with the same number of the first branch, fetches and restores
// the step of branch 1.
func TestABranchInMemoryAndStorage(t *testing.T) {
	c, p := savingPod(t)
	p.File("train.py", keeper)
	branch := func(d *v1.Directive) { d.Run.Branch = 1 }
	lead(c, v1.Order_ORDER_RUN, branch)
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "runs", runs(1, 1))
	r := follow(t, c, "five steps", branch, func(r *v1.Report) bool { return newest(r) >= 5 })
	if branches := r.Rank[0].SealedBranch; len(branches) != len(r.Rank[0].Sealed) || slices.Min(branches) != 1 {
		t.Fatalf("it reports %v", r)
	}
	at := newest(r)
	mark := &v1.Mark{Step: at, Generation: 1, Branch: 1}
	var copied *v1.Copied
	lead(c, v1.Order_ORDER_RUN, func(d *v1.Directive) { branch(d); d.Copy, d.CommonStep, d.ReclaimBelow = mark, at, at })
	c.Await(t, "a", "has copied", func(r *v1.Report) bool {
		copied = r.Rank[0].GetCopied()
		return copied.GetMark().GetStep() == at && copied.GetMark().GetBranch() == 1
	})
	lead(c, v1.Order_ORDER_RUN, func(d *v1.Directive) {
		branch(d)
		d.Manifest = &v1.Manifest{Mark: mark, Rank: []*v1.ManifestRank{{Length: copied.Length, Checksum: copied.Checksum}}}
	})
	c.Await(t, "a", "has written the manifest", func(r *v1.Report) bool { return r.GetManifested().GetStep() == at })
	checkStored(t, filepath.Join(p.Env["HOLDFAST_STORAGE"], "llama-uid", "gen-1"), int64(at))
	c.Direct("a", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_EXIT})
	p.Wait()
	restoreOfBranch(t, c, p, mark)
}

// checkStored checks that the file and the manifest of a step are of branch 1.
func checkStored(t *testing.T, dir string, step int64) {
	t.Helper()
	head, err := os.ReadFile(filepath.Join(dir, format.RankFileName(step, 0)))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := format.DecodeRankFile(head); err != nil || f.Point() != (format.Point{Branch: 1, Step: step}) {
		t.Errorf("the file is of %+v, %v", f, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, format.ManifestName(step)))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := format.DecodeManifest(text); err != nil || m.Branch != 1 {
		t.Errorf("the manifest is %+v, %v", m, err)
	}
}

// restoreOfBranch makes another pod hold the step with the same number of the first branch. The pod fetches the step of branch 1 and
// continues from it.
func restoreOfBranch(t *testing.T, c *coordtest.Coordinator, p *proctest.Container, mark *v1.Mark) {
	t.Helper()
	next := successor(t, c, p)
	next.File("train.py", keeper)
	c.Forget("a")
	lead(c, v1.Order_ORDER_RUN, func(*v1.Directive) {})
	next.Start("torchrun", "train.py")
	c.Await(t, "a", "runs", runs(1, 1))
	follow(t, c, "the number of that step", func(d *v1.Directive) { d.BarrierStep = mark.Step }, func(r *v1.Report) bool {
		return slices.Contains(r.Rank[0].Sealed, mark.Step)
	})
	halt := &v1.Directive{Generation: 2, Order: v1.Order_ORDER_HALT, Fetch: mark,
		Run: &v1.Generation{Number: 2, WorldSize: 1, RestoreStep: mark.Step - 1}} // a step of another history, which is not in this pod
	c.Direct("a", halt)
	c.Await(t, "a", "has fetched", func(r *v1.Report) bool {
		return len(r.Rank) == 1 && newest(r) == mark.Step && slices.Contains(r.Rank[0].SealedBranch, 1)
	})
	run := &v1.Generation{Number: 3, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", RestoreStep: mark.Step, Branch: 1, RestoreBranch: 1}
	c.Direct("a", &v1.Directive{Generation: 3, Order: v1.Order_ORDER_RUN, Run: run})
	next.Out.Await(t, fmt.Sprintf("start %d\n", mark.Step))
	c.Await(t, "a", "goes on, of branch 1", func(r *v1.Report) bool {
		return newest(r) > mark.Step && len(r.Rank[0].SealedBranch) > 0 && slices.Min(r.Rank[0].SealedBranch) == 1
	})
	kill(t, next.AgentPID(), syscall.SIGKILL)
	c.Await(t, "a", "its next agent knows the branch", func(r *v1.Report) bool {
		return r.Incarnation == 2 && len(r.Rank) == 1 && len(r.Rank[0].SealedBranch) > 0 && slices.Min(r.Rank[0].SealedBranch) == 1
	})
	c.Direct("a", &v1.Directive{Generation: 3, Order: v1.Order_ORDER_EXIT})
	if code := next.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
