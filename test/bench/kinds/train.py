"""The training script of the benchmark of kinds: an ordinary DistributedDataParallel loop. The script imports only PyTorch and the
standard library. Rank 0 saves the state to a shared folder after every step, and every start continues from that state.

    train.py FOLDER PAUSE

Events are appended to FOLDER/events, one JSON object per line.
"""
import json
import mmap
import os
import sys
import time

BEGAN = time.time()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.time()

# Every step of a process is reported until this many are new; after that only rates.
NEW_STEPS_REPORTED = 3
RATE_EVERY = 0.5


def main():
    folder, pause, rank = sys.argv[1], float(sys.argv[2]), int(os.environ["RANK"])
    saved = folder + "/state.pt"
    os.makedirs(folder, exist_ok=True)
    events = os.open(folder + "/events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def say(event, **fields):
        """Appends one line with one write, so that lines of several ranks never mix."""
        line = json.dumps({"bench": event, "rank": rank, "pod": os.environ["POD_NAME"], **fields}, separators=(",", ":")) + "\n"
        os.write(events, line.encode())

    say("started", pid=os.getpid(), t=BEGAN)
    say("imported", t=IMPORTED)
    dist.init_process_group("gloo")
    say("joined", t=time.time())

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 250), torch.nn.ReLU(), torch.nn.Linear(250, 250), torch.nn.ReLU(), torch.nn.Linear(250, 16)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = [torch.load(saved) if rank == 0 and os.path.exists(saved) else None]
    dist.broadcast_object_list(found)
    step = 0
    if found[0] is not None:
        step = found[0]["step"]
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    ddp = DistributedDataParallel(model)
    data = torch.Generator().manual_seed(100 + rank)
    batches = [(torch.randn(32, 64, generator=data), torch.randint(0, 16, (32,), generator=data)) for _ in range(16)]

    reached = reached_page(folder, rank)
    before = int.from_bytes(reached[:8], "little")
    say("restored", t=time.time(), step=step, reached=before)
    reported_until = max(step, before) + NEW_STEPS_REPORTED
    window, window_step = time.time(), step
    while True:
        step += 1
        inputs, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        if step <= reported_until:
            say("step", t=time.time(), step=step)
        if step > before:
            reached[:8] = step.to_bytes(8, "little")
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved + ".new")
            os.rename(saved + ".new", saved)
        time.sleep(pause)
        if rank == 0 and time.time() - window >= RATE_EVERY:
            say("rate", t=time.time(), step=step, step_ms=1000 * (time.time() - window) / (step - window_step))
            window, window_step = time.time(), step


def reached_page(folder, rank):
    """A page with the newest step that this rank ever finished: later steps are new. It outlives the process."""
    fd = os.open(f"{folder}/reached-{rank}", os.O_RDWR | os.O_CREAT, 0o666)
    os.ftruncate(fd, 4096)
    page = mmap.mmap(fd, 4096)
    os.close(fd)
    return page


if __name__ == "__main__":
    main()
