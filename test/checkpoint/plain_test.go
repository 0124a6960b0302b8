//go:build linux

package checkpoint

import (
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/trainer"
)

// plain is a training script with checkpoints of its own, without Holdfast's client.
const plain = `
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
checkpoint, step = sys.argv[1], 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while True:
    step += 1
    for _ in range(2):
        model(torch.ones(4, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if dist.get_rank() == 0 and step % 10 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
`

// TestPlainScript tests standbys, steps and resume points of a script without the client.
func TestPlainScript(t *testing.T) {
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("TORCH IS MISSING at %s (%v): scripts without the client are NOT tested here", python, err)
	}
	c := coordtest.Start(t)
	env := map[string]string{"HOLDFAST_RANKS": "2", "HOLDFAST_STANDBYS": "auto", "GLOO_SOCKET_IFNAME": "lo", "HOLDFAST_GRACE_SECONDS": "5"}
	startPod(t, c, "pod-0", env, python, "-m", "torch.distributed.run", "--nproc-per-node=2", trainer.File(t, plain), filepath.Join(t.TempDir(), "ck.pt"))
	c.Lead("pod-0")
	await := func(what string, is func(*v1.Report) bool) (*v1.Report, time.Duration) {
		t.Helper()
		began := time.Now()
		var r *v1.Report
		eventually.Holds(t, what, func() (bool, any) {
			r = c.Report("pod-0")
			return r != nil && len(r.Rank) == 2 && is(r), r
		})
		return r, time.Since(began)
	}
	every := func(r *v1.Report, is func(*v1.Rank) bool) bool {
		return !slices.ContainsFunc(r.Rank, func(r *v1.Rank) bool { return !is(r) })
	}
	stepped := func(generation, above uint64) func(*v1.Report) bool {
		return func(r *v1.Report) bool {
			return r.Generation == generation && r.Timeline.FirstStep != 0 && every(r, func(r *v1.Rank) bool { return r.OptimizerSteps > above })
		}
	}
	r, took := await("all ranks step", stepped(1, 2))
	t.Logf("all ranks stepped after %s", took)
	if !every(r, func(r *v1.Rank) bool { return r.ResumedAt != nil && *r.ResumedAt == 0 }) {
		t.Errorf("generation 1 begins at 0: %v", r.Rank)
	}
	_, took = await("standbys are ready", func(r *v1.Report) bool { return every(r, func(r *v1.Rank) bool { return r.StandbyReady }) })
	t.Logf("standbys were ready %s later", took)
	r, _ = await("it stepped for long enough to have saved", stepped(1, 20))
	if err := syscall.Kill(int(r.Rank[1].Pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, took = await("all ranks step again", stepped(2, 2))
	t.Logf("all ranks stepped %s after the kill", took)
	if !every(r, func(r *v1.Rank) bool { return r.FromStandby }) {
		t.Errorf("generation 2 was started cold: %v", r.Rank)
	}
	if !every(r, func(r *v1.Rank) bool { return r.ResumedAt != nil && *r.ResumedAt >= 20 && *r.ResumedAt%10 == 0 }) {
		t.Errorf("generation 2 goes on from what the script saved: %v", r.Rank)
	}
}
