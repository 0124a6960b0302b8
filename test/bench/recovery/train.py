"""The training script that every system of the recovery benchmark runs, unchanged.

DistributedDataParallel over gloo on CPU with just under one MiB of state per rank. State is kept after every step: by the
Holdfast client if there is an agent, otherwise by torch.save in a memory volume. Events are printed, one JSON object per line.
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

STATE = os.environ.get("BENCH_STATE", "/state")
# Every step of a process is printed until this many are new; after that only rates.
NEW_STEPS_PRINTED = 3
RATE_EVERY = 0.5


def say(event, **fields):
    """Prints one line with one write, so that lines of several ranks never mix."""
    line = json.dumps({"bench": event, **fields}, separators=(",", ":")) + "\n"
    os.write(1, line.encode())


def shared(name, rank=None):
    """A page of the memory volume that outlives the process; eight bytes are used."""
    import mmap

    path = f"{STATE}/{name}" if rank is None else f"{STATE}/{name}-{rank}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.ftruncate(fd, 4096)
    page = mmap.mmap(fd, 4096)
    os.close(fd)
    return page


def build(rank):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 250), torch.nn.ReLU(), torch.nn.Linear(250, 250), torch.nn.ReLU(), torch.nn.Linear(250, 16)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + rank)
    batches = [(torch.randn(32, 64, generator=data), torch.randint(0, 16, (32,), generator=data)) for _ in range(16)]
    return model, ddp, optimizer, batches


def train_step(ddp, optimizer, batch):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


class Files:
    """State in files of a memory volume, the newest two steps per rank; the group agrees on the newest step of all ranks."""

    def __init__(self, rank, model, optimizer):
        self.rank, self.model, self.optimizer = rank, model, optimizer

    def path(self, step):
        return f"{STATE}/rank-{self.rank}.step-{step}"

    def save(self, step):
        torch.save({"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.path("new"))
        os.rename(self.path("new"), self.path(step))
        try:
            os.unlink(self.path(step - 2))
        except FileNotFoundError:
            pass

    def restore(self):
        mine = f"rank-{self.rank}.step-"
        steps = [int(name[len(mine):]) for name in os.listdir(STATE) if name.startswith(mine) and name[len(mine):].isdigit()]
        common = torch.tensor([max(steps, default=0)])
        dist.all_reduce(common, op=dist.ReduceOp.MIN)
        step = int(common)
        for name in steps:
            if name > step:
                os.unlink(self.path(name))
        if step > 0:
            state = torch.load(self.path(step))
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        return step


class Memory:
    """State in the agent's memory."""

    def __init__(self, model, optimizer):
        import holdfast

        self.kept = holdfast.attach()
        self.kept.track(model=model, optimizer=optimizer)
        self.save, self.restore = self.kept.save, self.kept.restore


class Reached:
    """The newest step that this rank ever finished, across restarts: later steps are new."""

    def __init__(self, rank):
        self.page = shared("reached", rank)

    def get(self):
        return int.from_bytes(self.page[:8], "little")

    def set(self, step):
        self.page[:8] = step.to_bytes(8, "little")


def main():
    import struct

    pause = float(sys.argv[1])
    rank = int(os.environ["RANK"])
    say("started", rank=rank, pid=os.getpid(), t=BEGAN)
    say("imported", rank=rank, t=IMPORTED)
    # The pause can be changed while the script runs: its bits are in the memory volume; 0: the initial value.
    pace = shared("pace")
    dist.init_process_group("gloo")
    say("joined", rank=rank, t=time.time())
    model, ddp, optimizer, batches = build(rank)
    keeper = Memory(model, optimizer) if os.environ.get("HOLDFAST_ARENA") else Files(rank, model, optimizer)
    reached = Reached(rank)
    before = time.time()
    step = keeper.restore()
    say("restored", rank=rank, t=time.time(), step=step, reached=reached.get(), load_ms=1000 * (time.time() - before))
    chatty_until = max(step, reached.get()) + NEW_STEPS_PRINTED
    window, window_step, saving = time.time(), step, 0.0
    while True:
        step += 1
        train_step(ddp, optimizer, batches[step % len(batches)])
        finished = time.time()
        if step <= chatty_until:
            say("step", rank=rank, t=finished, step=step)
        if step > reached.get():
            reached.set(step)
        keeper.save(step)
        saving += time.time() - finished
        told = struct.unpack("<d", pace[:8])[0]
        wait = told if told > 0 else pause
        if told >= 0 and wait > 0:
            time.sleep(wait)
        if rank == 0 and time.time() - window >= RATE_EVERY:
            n = step - window_step
            say("rate", rank=rank, t=time.time(), step=step, step_ms=1000 * (time.time() - window) / n, save_ms=1000 * saving / n)
            window, window_step, saving = time.time(), step, 0.0


if __name__ == "__main__":
    main()
