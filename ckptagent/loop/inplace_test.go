//go:build linux

package loop_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// sharded is a script that trains with FSDP2 and tensor parallelism on four ranks, saves one step, and writes the whole state to a file.
const sharded = `
import os, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import holdfast

dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
fully_shard(parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}), mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
ck = holdfast.attach()
ck.track(model=model, optimizer=optimizer, scheduler=scheduler, seen={"at": rank}, rng=True)
for step in range(ck.restore() + 1, 4):
    torch.manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    scheduler.step()
saved = ck.save(3)
assert saved, saved
whole = {"model." + k: v.full_tensor() for k, v in model.state_dict().items()}
for i, s in optimizer.state_dict()["state"].items():
    whole.update({"optimizer.state.%d.%s" % (i, k): v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in s.items()})
if rank == 0:
    torch.save(whole, "whole.pt")
while not saved.durable:
    time.sleep(0.01)
os.write(1, b"rank %d is durable\n" % rank)
time.sleep(600)
`

// stockReader is a script for a process that has torch and no code of Holdfast.
const stockReader = `
import importlib.util, sys
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
assert importlib.util.find_spec("holdfast") is None
whole = torch.load("whole.pt", weights_only=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
model(torch.ones(1, 6)).sum().backward()
optimizer.step()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": {"at": None}, "scheduler": {"last_epoch": None}, "rank-3": {"seen": {"at": None}}}
dcp.load(state, checkpoint_id=sys.argv[1])
for name, t in whole.items():
    kind, *path = name.split(".", 1) if name.startswith("model") else name.split(".")
    got = state[kind]
    for p in path:
        got = got[int(p) if p.isdigit() else p]
    assert got.dtype == t.dtype and torch.equal(got, t), name
assert (state["seen"]["at"], state["rank-3"]["seen"]["at"], state["scheduler"]["last_epoch"]) == (0, 3, 3), state
assert state["optimizer"]["param_groups"][0]["lr"] == 0.01 * 0.8 * 0.8 * 0.8
dcp_to_torch_save(sys.argv[1], "one.pt")
one = torch.load("one.pt", weights_only=False)
assert torch.equal(one["model"]["2.weight"], whole["model.2.weight"]) and one["rank-2"]["seen"] == {"at": 2}
print(len(whole), "tensors are equal")
`

// TestStockTorchReadsWhatAgentsStored: ranks save through a real agent, which copies the step to storage as the real coordinator orders it.
// A process without holdfast reads the step there.
func TestStockTorchReadsWhatAgentsStored(t *testing.T) {
	const torchPython = "/opt/holdfast-python/venv/bin/python3"
	if exec.Command(torchPython, "-c", "import torch").Run() != nil {
		t.Skip("SKIPPED: torch is not there: make prepare")
	}
	c := coordtest.Start(t)
	p := newPod(t, c, "a")
	p.Env["PATH"] = filepath.Dir(torchPython) + ":" + p.Env["PATH"]
	p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"], p.Env["OMP_NUM_THREADS"] = "262144", "4", "1"
	p.Env["HOLDFAST_STORAGE"], p.Env["HOLDFAST_GANG"], p.Env["HOLDFAST_JOB_UID"] = filepath.Join(p.Dir, "claim"), "llama", "uid"
	if err := os.Mkdir(p.Env["HOLDFAST_STORAGE"], 0o755); err != nil {
		t.Fatal(err)
	}
	p.File("train.py", sharded)
	p.File("read.py", stockReader)
	g := c.LeadAndStore("a")
	p.Start("torchrun", "--nproc-per-node=4", "train.py")
	p.Out.Await(t, "rank 0 is durable", "rank 1 is durable", "rank 2 is durable", "rank 3 is durable")
	if step, _ := g.Durable(); step != 3 {
		t.Errorf("step %d is durable", step)
	}
	read := exec.Command(torchPython, "-W", "ignore", "read.py", filepath.Join(p.Env["HOLDFAST_STORAGE"], "llama-uid", "gen-1", "step-3.dcp"))
	read.Dir = p.Dir
	out, err := read.CombinedOutput()
	if err != nil || string(out) != "16 tensors are equal\n" {
		t.Errorf("%v: %s", err, out)
	}
}
