"""Loads an exported step with PyTorch alone: on 4 ranks with another sharding, saves it, and loads it on 2 ranks."""

import importlib.util
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from export_ranks import body, flat, run

EXPORTED, WHOLE, AGAIN = sys.argv[1:4]
assert importlib.util.find_spec("holdfast") is None, "holdfast can be imported here"


def state_of(name, number, mesh):
    """State dicts as a script would pass them: a sharded model and its optimizer, with values that differ from the saved ones."""
    model = body(100 + number)
    if name == "ddp":
        model = torch.nn.Sequential(model, torch.nn.BatchNorm1d(5))
    fully_shard(model, mesh=mesh)
    if name == "tp":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    else:
        optimizer = torch.optim.AdamW(model.named_parameters() if name == "named" else model.parameters(), lr=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    weights, state = model.state_dict(), optimizer.state_dict()
    if name == "named":
        names = state["param_groups"][0].pop("param_names")
        state = {"state": {names[i]: s for i, s in state["state"].items()}, "param_groups": [dict(state["param_groups"][0], params=names)]}
    return {name: {"module": weights} if name in ("ddp", "zero") else weights, name + "_o": state}


def load(folder, save_to):
    def rank_main(rank):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        state = {"seen": {"at": -1, "of": -1}}
        for number, name in enumerate(("both", "tp", "named", "ddp", "zero")):
            state.update(state_of(name, number, mesh))
        dcp.load(state, checkpoint_id=folder)
        assert state["seen"] == {"at": 0, "of": 40}, state["seen"]
        assert state["both_o"]["param_groups"][0]["lr"] == 0.01
        got, want = flat("", state, {}), torch.load(WHOLE, weights_only=True)
        for name, t in want.items():
            assert t.dtype == got[name].dtype and torch.equal(t.view(-1).view(torch.uint8), got[name].contiguous().view(-1).view(torch.uint8)), name
        assert set(want) == set(got), set(want) ^ set(got)
        if save_to:
            dcp.save(state, checkpoint_id=save_to)
        if rank == 0:
            print("%d tensors are equal on %d ranks" % (len(want), dist.get_world_size()))

    return rank_main


def own_values():
    """One rank's own values: its random state and its position in the data."""
    state = {"rank-%d" % r: {"seen": {"at": -1}, "__rng__": {"torch": torch.zeros_like(torch.get_rng_state())}} for r in range(4)}
    dcp.load(state, checkpoint_id=EXPORTED)
    for rank in range(4):
        torch.manual_seed(rank)
        assert torch.equal(state["rank-%d" % rank]["__rng__"]["torch"], torch.get_rng_state()), rank
        assert state["rank-%d" % rank]["seen"]["at"] == 10 * rank
    print("each rank's own values are there")


own_values()
run(4, load(EXPORTED, AGAIN))
run(2, load(AGAIN, None))
