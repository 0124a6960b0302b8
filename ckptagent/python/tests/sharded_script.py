"""The script that test_sharded runs on four ranks: it trains models sharded in four ways and prints their losses.

Ranks track, restore and save one after the other, so that a collective in one of these calls would hang.
"""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import holdfast

SEED, LAST, SAVE = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
FOLDER, RANK = pathlib.Path(sys.argv[4]), int(os.environ["RANK"])


def in_turn(what, call):
    while RANK and not (FOLDER / ("%s-%d" % (what, RANK - 1))).exists():
        time.sleep(0.002)
    result = call()
    (FOLDER / ("%s-%d" % (what, RANK))).touch()
    return result


def body(number):
    torch.manual_seed(10 * SEED + number)
    with holdfast.attach().skip_init():
        return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 5))  # 5 rows on 2 ranks: uneven shards


def tensor_parallel(number, mesh):
    return parallelize_module(body(number), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def models(mesh):
    """name -> model, optimizer"""
    both = fully_shard(tensor_parallel(1, mesh["tp"]), mesh=mesh["dp"])
    tp = tensor_parallel(2, mesh["tp"])
    hybrid = fully_shard(body(3), mesh=mesh)
    replicated = nn.parallel.DistributedDataParallel(body(4))
    return {
        "fsdp2 and tensor parallel": (both, torch.optim.AdamW(both.parameters(), lr=0.01)),
        "tensor parallel": (tp, torch.optim.SGD(tp.parameters(), lr=0.01, momentum=0.9)),
        "hybrid fsdp2": (hybrid, torch.optim.AdamW(hybrid.parameters(), lr=0.01, foreach=False)),
        "zero 1": (replicated, ZeroRedundancyOptimizer(replicated.parameters(), torch.optim.AdamW, lr=0.01)),
    }


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    made = models(mesh)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for _, optimizer in made.values()]
    torch.manual_seed(SEED + mesh.get_local_rank("dp"))

    ck = holdfast.attach()
    in_turn("track", lambda: ck.track(models={k: m for k, (m, _) in made.items()}, schedulers=schedulers, rng=True, **{k: o for k, (_, o) in made.items()}))
    start = in_turn("restore", ck.restore)
    for step in range(start + 1, LAST + 1):
        x = torch.randn(4, 6)
        for name, (model, optimizer) in made.items():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            print("loss of %s in step %d: %s" % (name, step, loss.item().hex()), flush=True)
        for scheduler in schedulers:
            scheduler.step()
        if step == SAVE:
            assert in_turn("save", lambda: ck.save(step)), "not saved"
    print("done", flush=True)
    if SAVE > start:
        signal.pause()  # until it is killed


main()
