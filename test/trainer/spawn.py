"""A script as PyTorch's own tutorial on DistributedDataParallel writes it: it starts its processes by mp.spawn, and keeps a
checkpoint of its own. The script does not expect a restart."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, WORLD = 40, 2


def work(rank, folder):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(torch.nn.Linear(4, 1), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path, start = os.path.join(folder, "checkpoint.pt"), 0
    if os.path.exists(path):
        held = torch.load(path)
        start = held["step"]
        model.load_state_dict(held["model"])
    print("rank %d begins at step %d as %d" % (rank, start, os.getpid()), flush=True)
    for step in range(start + 1, STEPS + 1):
        x = torch.full((8, 4), float(step + rank)) / STEPS
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.barrier()
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict()}, path + ".part")
            os.replace(path + ".part", path)
            print("step %d %.9f" % (step, loss.item()), flush=True)
        dist.barrier()
        time.sleep(float(sys.argv[3]))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=WORLD)
    print("trained", flush=True)
