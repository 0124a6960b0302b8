#!/usr/bin/env python3
"""Trains a small character model on a few pages of text, data parallel over all ranks.

Plain torchrun runs this file as it is:

    torchrun --standalone --nproc-per-node=4 train.py

In a Holdfast job the lines marked (*) keep the model in memory that outlives a killed process; anywhere else they do
nothing. Each rank prints the loss of each step in full precision, so that two runs can be compared bit for bit.
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import holdfast  # (*)
except ImportError:
    holdfast = None


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5 + self.mask[:t, :t]
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w)
        x = x + self.dropout(self.out(attended))
        return x + self.dropout(self.mlp(self.norm2(x)))


class CharModel(nn.Module):
    """Predicts the next character. Input and output embeddings are one tensor."""

    def __init__(self, letters, context, width=48, heads=4, layers=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x):
        x = self.embed(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def batch(text, step, rank, size, context, seed):
    """The batch of one step on one rank: a function of its numbers, so a restart needs no loader's state."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
    at = torch.randint(len(text) - context - 1, (size,), generator=g)
    rows = torch.stack([text[i : i + context + 1] for i in at.tolist()])
    return rows[:, :-1], rows[:, 1:]


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=200, help="steps in all")
    p.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step, until the process gets SIGUSR1")
    p.add_argument("--save-every", type=int, default=1, help="steps between two saves in memory")
    p.add_argument("--data", default=os.path.join(here, "text.txt"), help="text to learn")
    p.add_argument("--batch", type=int, default=8, help="rows per rank and step")
    p.add_argument("--context", type=int, default=32, help="characters per row")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--log-mib", type=int, default=0, help="MiB of losses of past steps that each rank keeps with the model, a row of 1 MiB per step")
    return p.parse_args()


def check(past, start):
    """The rows of the last steps hold the numbers of these steps: each in turn, the first one again after the last."""
    for step in range(max(1, start - len(past) + 1), start + 1):
        if past[step % len(past), 0] != step or past[step % len(past), -1] != step:
            raise RuntimeError(f"after step {start} the row of step {step} holds {past[step % len(past), 0]} and {past[step % len(past), -1]}")


def main():
    args = arguments()
    signal.signal(signal.SIGUSR1, lambda *_: setattr(args, "pause", 0.0))
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    with open(args.data, encoding="utf-8") as f:
        raw = f.read()
    letters = {c: i for i, c in enumerate(sorted(set(raw)))}
    text = torch.tensor([letters[c] for c in raw])

    torch.manual_seed(args.seed)
    # find_unused_parameters keeps DDP from rebuilding its buckets after the first backward pass of a process:
    # then a restarted process adds up gradients in the same order, and the losses are the same, bit for bit.
    model = DistributedDataParallel(CharModel(len(letters), args.context), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))
    torch.manual_seed(args.seed + 1 + rank)  # dropout differs between ranks

    past = torch.zeros(args.log_mib, 1 << 18)

    start, checkpoint = 0, None
    if holdfast is not None:  # (*)
        checkpoint = holdfast.attach()
        checkpoint.track(model=model, optimizer=optimizer, schedule=schedule, past=past, rng=True)
        start = checkpoint.restore()
    if args.log_mib:
        check(past, start)
    print(f"rank {rank} pid {os.getpid()} starts after step {start}\n", end="", flush=True)

    for step in range(start + 1, args.steps + 1):
        x, y = batch(text, step, rank, args.batch, args.context, args.seed)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if args.log_mib:
            past[step % len(past), 1:-1] = loss.item()
            past[step % len(past), 0] = past[step % len(past), -1] = step
        # One write per line: all ranks share one output.
        print(f"step {step} rank {rank} loss {loss.item().hex()}\n", end="", flush=True)
        if checkpoint is not None:  # (*)
            checkpoint.save(step) if step % args.save_every == 0 else checkpoint.step(step)
        if args.pause:
            time.sleep(args.pause)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
