#!/usr/bin/env python3
"""Learns to tell three kinds of points apart, data parallel. Not one line here knows of Holdfast."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--pause", type=float, default=0.0)
    args = p.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    centres = 3 * torch.randn(3, 8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    print(f"rank {rank} pid {os.getpid()} starts\n", end="", flush=True)

    for step in range(1, args.steps + 1):
        kind = torch.randint(3, (16,))
        loss = nn.functional.cross_entropy(model(centres[kind] + torch.randn(16, 8)), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} rank {rank} loss {loss.item().hex()}\n", end="", flush=True)
        time.sleep(args.pause)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
