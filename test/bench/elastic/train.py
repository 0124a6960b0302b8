"""The script of the elasticity benchmark: a DistributedDataParallel loop over gloo that keeps its global batch at any number of ranks, with
64 MiB of state per rank. All systems run it unchanged.

    train.py FOLDER

Its state is kept after every step by the Holdfast client if there is an agent, else every KEEP_EVERY steps in a file of FOLDER, which all
pods share. Each process appends its events to a file of FOLDER, one JSON object per line, so that no line is lost with a node.
"""
import json
import os
import sys
import time

BEGAN = time.time()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.time()

FOLDER = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
POD = os.environ["BENCH_POD"]
#: A step's pause in seconds, its samples, and the steps from one checkpoint to the next without the client.
PAUSE, BATCH, KEEP_EVERY = 0.1, 24, 10
WIDTH = 2320
OUT = os.open(os.path.join(FOLDER, POD + ".events"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def say(event, **fields):
    """Writes one line with one write, so that lines of several ranks never mix."""
    line = json.dumps({"bench": event, "rank": RANK, "world": WORLD, "t": time.time(), **fields}, separators=(",", ":")) + "\n"
    os.write(OUT, line.encode())


class File:
    """State in one file, written by rank 0 and read by all."""

    def __init__(self, model, optimizer):
        self.path, self.model, self.optimizer = os.path.join(FOLDER, "kept.pt"), model, optimizer

    def save(self, step):
        if RANK != 0 or step % KEEP_EVERY != 0:
            return
        state = {"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def restore(self):
        if not os.path.exists(self.path):
            return 0
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]


class Memory:
    """State in the agent's memory."""

    def __init__(self, model, optimizer):
        import holdfast

        kept = holdfast.attach()
        kept.track(model=model, optimizer=optimizer)
        self.save, self.restore = kept.save, kept.restore


def main():
    say("started", pid=os.getpid(), t=BEGAN)
    say("imported", t=IMPORTED)
    dist.init_process_group("gloo")
    say("joined")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 16)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    keeper = Memory(model, optimizer) if os.environ.get("HOLDFAST_ARENA") else File(model, optimizer)
    step = keeper.restore()
    say("restored", step=step, reached=0)
    ddp = DistributedDataParallel(model)
    inputs, labels = torch.randn(4096, 64), torch.randint(0, 16, (4096,))
    while True:
        step += 1
        # This rank's share of the samples of this step (docs/elasticity.md).
        first, end = (BATCH * r // WORLD + BATCH * (step - 1) for r in (RANK, RANK + 1))
        share = torch.arange(first, end) % len(inputs)
        loss = torch.nn.functional.cross_entropy(ddp(inputs[share]), labels[share]) * len(share) * WORLD / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say("step", step=step, first=first, count=end - first)
        keeper.save(step)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
