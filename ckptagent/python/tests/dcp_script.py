"""The script that test_dcp runs on ranks: only its writer and reader differ from a script for torch's own checkpoints.

The script follows torch's recipe of distributed checkpoints: an AppState that is Stateful, saved and loaded as {"app": …}.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from export_ranks import body, flat, run
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

A = json.loads(sys.argv[1])  # world, agents, whole, path, seed, load, last, stock


class AppState(Stateful):
    def __init__(self, model, optimizer=None):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        weights, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": optimizer}

    def load_state_dict(self, state_dict):
        set_state_dict(self.model, self.optimizer, model_state_dict=state_dict["model"], optim_state_dict=state_dict["optim"])


def apps(seed):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("all",))
    torch.manual_seed(seed)
    sharded = fully_shard(body(seed), mesh=mesh)
    parallel = body(seed + 1)
    if dist.get_world_size() == 2:
        parallelize_module(parallel, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        fully_shard(parallel, mesh=mesh)
    made = {"fsdp": sharded, "tp": parallel}
    return {k: AppState(m, torch.optim.AdamW(m.parameters(), lr=0.01)) for k, m in made.items()}


def train(state, step):
    for app in state.values():
        if isinstance(app, AppState):
            torch.manual_seed(step)
            app.model(torch.randn(4, 6)).square().mean().backward()
            app.optimizer.step()
            app.optimizer.zero_grad()


def whole(state):
    return flat("", {k: v.state_dict() if isinstance(v, AppState) else v for k, v in state.items()}, {})


def check(state, folder, step):
    want, got = torch.load(os.path.join(folder, "whole-%d.pt" % step), weights_only=True), whole(state)
    assert set(want) == set(got), set(want) ^ set(got)
    for name, t in want.items():
        assert t.dtype == got[name].dtype and torch.equal(t.view(-1).view(torch.uint8), got[name].contiguous().view(-1).view(torch.uint8)), name
    assert state["seen"] == {"at": 10 * step}, state["seen"]


def rank_main(rank):
    stock = A.get("stock", False)
    if not stock:
        os.environ.update(A["agents"][rank] if A["agents"] else {})
        import holdfast.dcp

    aside = dist.new_group(backend="gloo")  # async_save plans in a thread, while training uses the other group
    state = {**apps(A["seed"]), "seen": {"at": -1}}
    start = A["load"]
    if stock:
        dcp.load(state, checkpoint_id=A["path"])
    else:
        reader, writer = holdfast.dcp.Reader(A["path"]), holdfast.dcp.Writer()
        assert reader.step == start, reader.step
        if reader.step:
            dcp.load(state, storage_reader=reader)
    if start:
        check(state, A["whole"], start)
    for step in range(start + 1, A["last"] + 1):
        train(state, step)
        state["seen"] = {"at": 10 * step}
        full = whole(state)
        if rank == 0:
            torch.save(full, os.path.join(A["whole"], "whole-%d.pt" % step))
        if step % 2:
            dcp.save(state, checkpoint_id="checkpoints/step-%d" % step, storage_writer=writer)
        else:
            done = dcp.async_save(state, checkpoint_id="checkpoints/step-%d" % step, storage_writer=writer, process_group=aside)
            train(state, 99)  # training goes on during the save
            done.result()
        assert writer.saved, writer.saved
        while not writer.saved.sealed:
            time.sleep(0.005)
    if rank == 0:
        print("loaded step %d on %d ranks" % (start, dist.get_world_size()))


run(A["world"], rank_main)
