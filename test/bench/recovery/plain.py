"""The script of the recovery benchmark's case "plain": an ordinary DistributedDataParallel loop. The script imports only
PyTorch and the standard library, and keeps no state.

The script prints events, one JSON object per line, and reads its pause from a file, so that the benchmark can change the pause.
"""
import json
import mmap
import os
import struct
import sys
import time

BEGAN = time.time()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.time()

STATE = os.environ.get("BENCH_STATE", "/state")
# Every step of a process is printed up to this number; after that only rates.
STEPS_PRINTED = 3
RATE_EVERY = 0.5


def say(event, **fields):
    """Prints one line with one write, so that lines of several ranks never mix."""
    line = json.dumps({"bench": event, **fields}, separators=(",", ":")) + "\n"
    os.write(1, line.encode())


def pace_page():
    fd = os.open(STATE + "/pace", os.O_RDWR | os.O_CREAT, 0o666)
    os.ftruncate(fd, 4096)
    page = mmap.mmap(fd, 4096)
    os.close(fd)
    return page


def main():
    pause = float(sys.argv[1])
    rank = int(os.environ["RANK"])
    say("started", rank=rank, pid=os.getpid(), t=BEGAN)
    say("imported", rank=rank, t=IMPORTED)
    pace = pace_page()
    dist.init_process_group("gloo")
    say("joined", rank=rank, t=time.time())

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 250), torch.nn.ReLU(), torch.nn.Linear(250, 250), torch.nn.ReLU(), torch.nn.Linear(250, 16)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + rank)
    batches = [(torch.randn(32, 64, generator=data), torch.randint(0, 16, (32,), generator=data)) for _ in range(16)]

    step, window, window_step = 0, time.time(), 0
    while True:
        step += 1
        inputs, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        if step <= STEPS_PRINTED:
            say("step", rank=rank, t=time.time(), step=step)
        told = struct.unpack("<d", pace[:8])[0]
        wait = told if told > 0 else pause
        if told >= 0 and wait > 0:
            time.sleep(wait)
        if rank == 0 and time.time() - window >= RATE_EVERY:
            say("rate", rank=rank, t=time.time(), step=step, step_ms=1000 * (time.time() - window) / (step - window_step))
            window, window_step = time.time(), step


if __name__ == "__main__":
    main()
