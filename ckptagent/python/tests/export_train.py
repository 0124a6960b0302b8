"""The model that test_export trains on 2 x 2 ranks and saves with the client. Rank 0 writes the whole state to a file."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import holdfast
from export_ranks import body, flat, run

STEP, OUT, AGENTS = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def tensor_parallel(number, mesh):
    return parallelize_module(body(number), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def made(mesh):
    """name -> model, optimizer, whether all ranks have the same data"""
    both = fully_shard(tensor_parallel(1, mesh["tp"]), mesh=mesh["dp"])
    tp = tensor_parallel(2, mesh["tp"])
    named = fully_shard(body(3), mesh=mesh)
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(body(4), nn.BatchNorm1d(5)))
    zero = nn.parallel.DistributedDataParallel(body(5))
    return {
        "both": (both, torch.optim.AdamW(both.parameters(), lr=0.01), False),
        "tp": (tp, torch.optim.SGD(tp.parameters(), lr=0.01, momentum=0.9), True),
        "named": (named, torch.optim.AdamW(named.named_parameters(), lr=0.01), False),
        "ddp": (ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01), False),
        "zero": (zero, ZeroRedundancyOptimizer(zero.parameters(), torch.optim.AdamW, lr=0.01), False),
    }


def rank_main(rank):
    os.environ.update(AGENTS[rank])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    models = made(mesh)
    ck = holdfast.attach()
    ck.track(rng=True, seen={"at": 10 * rank, "of": 40}, **{k: m for k, (m, _, _) in models.items()}, **{k + "_o": o for k, (_, o, _) in models.items()})
    assert ck.restore() == 0
    for step in range(1, STEP + 1):
        for number, (model, optimizer, alike) in enumerate(models.values()):
            torch.manual_seed(1000 * step + 10 * number + (0 if alike else mesh.get_local_rank("dp")))
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
    torch.manual_seed(rank)
    assert ck.save(STEP), "not saved"
    whole = {}
    for name, (model, optimizer, _) in models.items():
        if name == "zero":
            optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict() if name != "zero" or rank == 0 else {}
        if name == "named":
            names = [n for g in state["param_groups"] for n in g["param_names"]]
            state = {"state": {names[i]: s for i, s in state["state"].items()}}
        flat("", {name: model.state_dict(), name + "_o": {k: v for k, v in state.items() if k == "state"}}, whole)
    if rank == 0:
        torch.save(whole, OUT)
    dist.barrier()


run(4, rank_main)
