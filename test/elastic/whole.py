"""Trains a model that FSDP2 divides over all ranks, saved after each step.

    whole.py
"""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = fully_shard(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ck = holdfast.attach()
    ck.track(model=model, optimizer=optimizer)
    step = ck.restore()
    while True:
        step += 1
        optimizer.zero_grad()
        model(torch.ones(4, 12)).square().mean().backward()
        optimizer.step()
        ck.save(step)
        time.sleep(0.2)


main()
