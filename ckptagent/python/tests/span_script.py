"""The script that test_donor runs on four ranks: it prints over how many ranks states are divided that are laid out in different ways."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast import _donor
from holdfast._state import Flat
from tests.case import Holder


def application(*parts):
    """An object whose state_dict() has those of others, as applications that use torch.distributed.checkpoint have."""
    return Holder(**{str(number): part.state_dict() for number, part in enumerate(parts)})


class Trainer:
    """An object whose state_dict() has that of a module deep in its attributes, beside others."""

    def __init__(self, module, *others):
        self.samples, self.engine, self.others = list(range(100_000)), [Holder(module=module, parent=self)], others

    def state_dict(self):
        return {"module": self.engine[0].state["module"].state_dict()}

    def load_state_dict(self, state):
        self.engine[0].state["module"].load_state_dict(state["module"])


class Hidden:
    """An object in which the client cannot see the module."""

    def __init__(self, module):
        self.state_dict, self.load_state_dict = lambda: module.state_dict(), module.load_state_dict


def body():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def tensor_parallel(mesh):
    return parallelize_module(body(), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def states():
    names = ("outer", "inner")
    named, ones, fours = (init_device_mesh("cpu", shape, mesh_dim_names=names) for shape in ((2, 2), (4, 1), (1, 4)))
    across, swapped = (DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=names) for ranks in ([[0, 2], [1, 3]], [[1, 0], [3, 2]]))
    flat = init_device_mesh("cpu", (4,))
    ddp = nn.parallel.DistributedDataParallel(body())
    hybrid = fully_shard(body(), mesh=named)
    return {
        "ddp": [ddp, torch.optim.AdamW(ddp.parameters())],
        "replicated": distribute_tensor(torch.zeros(8), flat, [Replicate()]),
        "hybrid": [hybrid, torch.optim.AdamW(hybrid.parameters())],
        "hybrid of 1": fully_shard(body(), mesh=ones),
        "hybrid of 4": fully_shard(body(), mesh=fours),
        "hybrid across": fully_shard(body(), mesh=across),
        "hybrid swapped": fully_shard(body(), mesh=swapped),
        "divided by the outer": distribute_tensor(torch.zeros(8), named, [Shard(0), Replicate()]),
        "tensor parallel": tensor_parallel(named["inner"]),
        "tensor parallel across": tensor_parallel(named["outer"]),
        "fsdp2": fully_shard(body(), mesh=flat),
        "fsdp2 and tensor parallel": fully_shard(tensor_parallel(named["inner"]), mesh=named["outer"]),
        "zero 1": {"m": ddp, "o": ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW)},
        "hybrid and ddp": [hybrid, ddp],
        "hybrid and fsdp2": [hybrid, fully_shard(body(), mesh=flat)],
        "application of ddp": application(ddp, torch.optim.AdamW(ddp.parameters())),
        "application of replicated": application(nn.ParameterList([distribute_tensor(torch.zeros(8), flat, [Replicate()])])),
        "application of fsdp2": application(fully_shard(body(), mesh=flat)),
        "application of hybrid": application(hybrid, torch.optim.AdamW(hybrid.parameters())),
        "hybrid and its application": [hybrid, application(hybrid)],
        "trainer of hybrid": {"t": [Trainer(hybrid)]},
        "trainer of ddp beside fsdp2": Trainer(ddp, fully_shard(body(), mesh=flat)),
        "trainer of fsdp2": Trainer(fully_shard(body(), mesh=flat)),
        "hidden ddp": Hidden(ddp),
        "hidden hybrid": Hidden(hybrid),
        "hybrid and application of fsdp2": [hybrid, application(fully_shard(body(), mesh=flat))],
    }


dist.init_process_group("gloo")
for name, state in states().items():
    taken = Flat()
    taken.add("s", state)
    print("%s: %d, %d" % (name, _donor.span({"s": state}, taken.leaves), _donor.span({"s": state})), flush=True)
    if _donor.hidden({"s": state}, taken.leaves):
        print(_donor.hidden({"s": state}, taken.leaves), flush=True)
dist.destroy_process_group()
