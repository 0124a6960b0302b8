"""The script that test_donor runs: it trains a model on batches of a fixed size, and prints samples, losses and a digest of its state.

    donor_script.py KIND SEED LAST

It saves the last step. KIND is how ranks hold the state; application: as fsdp2, in an object of the script; trainer: as hsdp, in one that
has the model and the optimizer.
"""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import holdfast
from tests.case import Holder

KIND, SEED, LAST = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH, SAMPLES = 12, 101


def made(world):
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 5))
    if KIND == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        hybrid = {"mesh_shape": (world // 2, 2), "mesh_dim_names": ("replicas", "shards")}
        fully_shard(model, mesh=init_device_mesh("cpu", **(hybrid if KIND in ("hsdp", "trainer") else {"mesh_shape": (world,)})))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def digest(model, optimizer):
    """Over all tensors that this rank holds."""
    text = hashlib.sha256()
    held = dict(model.state_dict())
    for number, state in enumerate(optimizer.state.values()):
        held.update(("%d %s" % (number, k), v) for k, v in state.items())
    for name, tensor in held.items():
        here = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        text.update(name.replace("module.", "").encode() + here.detach().contiguous().numpy().tobytes())
    return text.hexdigest()


def loss_of(model, samples):
    x = torch.stack([torch.randn(6, generator=torch.Generator().manual_seed(s)) for s in samples])
    return model(x).square().mean()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = made(world)
    ck = holdfast.attach()
    tracked = {"model": model, "optimizer": optimizer}
    if KIND == "application":
        tracked = {"application": Holder(model=model.state_dict())}
    elif KIND == "trainer":
        tracked = {"trainer": Trainer(model, optimizer)}
    ck.track(rng=True, **tracked)
    fresh = digest(model, optimizer)
    try:
        start = ck.restore()
    except holdfast.RestoreError:
        print("the state is %s" % ("unchanged" if digest(model, optimizer) == fresh else "changed"), flush=True)
        raise
    print("state of step %d: %s" % (start, digest(model, optimizer)), flush=True)
    for step in range(start + 1, LAST + 1):
        share = [(step * BATCH + i) % SAMPLES for i in range(BATCH * rank // world, BATCH * (rank + 1) // world)]
        loss = loss_of(model, share) * len(share) * world / BATCH
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        print("step %d: loss %.9f of samples %s" % (step, mean.item(), share), flush=True)
    assert ck.save(LAST)
    print("state of step %d: %s" % (LAST, digest(model, optimizer)), flush=True)
    print("random %s" % torch.rand(1).item().hex(), flush=True)
    dist.destroy_process_group()


main()
