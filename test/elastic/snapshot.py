"""An ordinary elastic script: it divides a data set over the ranks that there are, and goes on from its own snapshot of the last epoch. It
imports only PyTorch.

    snapshot.py FOLDER
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FOLDER = sys.argv[1]
SNAPSHOT = os.path.join(FOLDER, "snapshot.pt")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = TensorDataset(torch.rand(96, 20), torch.rand(96, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model, begun = torch.nn.Linear(20, 1), 0
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT)
        model.load_state_dict(snapshot["model"])
        begun = snapshot["epochs"]
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    epoch = begun
    while not ends():
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
        epoch += 1
        if rank == 0:
            torch.save({"model": model.state_dict(), "epochs": epoch}, SNAPSHOT + ".new")
            os.replace(SNAPSHOT + ".new", SNAPSHOT)
            with open(os.path.join(FOLDER, "epochs"), "a") as f:
                f.write("%d %d %d\n" % (begun, epoch, world))
        time.sleep(0.2)
    dist.destroy_process_group()


def ends():
    """Whether a rank has seen the file that ends the script; all ranks decide alike."""
    seen = torch.tensor(int(os.path.exists(os.path.join(FOLDER, "end"))))
    dist.all_reduce(seen)
    return int(seen) > 0


main()
