"""The script of the hang benchmark: an ordinary DistributedDataParallel loop over gloo with its own checkpoint. It imports only PyTorch
and the standard library, except with HANG_HEARTBEATS=ft: ft_launcher watches only ranks that send heartbeats.

    plain.py FOLDER FAULT

When FOLDER/play is there, rank ODD stands still once, after a step, in the way that FAULT names.
"""
import json
import os
import signal
import sys
import time

BEGAN = time.time()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.time()

FOLDER, FAULT = sys.argv[1:3]
RANK = int(os.environ["RANK"])
#: The rank that the others wait for.
ODD = 2
#: A step's pause in seconds, and the steps from one checkpoint to the next.
PAUSE, KEEP_EVERY = 0.1, 10


def say(event, **fields):
    """Prints one line with one write, so that lines of several ranks never mix."""
    line = json.dumps({"bench": event, "rank": RANK, "t": time.time(), **fields}, separators=(",", ":")) + "\n"
    os.write(1, line.encode())


def sleeps():
    """Waits in the script's own code for what never comes."""
    while True:
        time.sleep(3600)


def collective():
    """Enters a collective that no other rank enters."""
    dist.broadcast(torch.ones(4), ODD)
    dist.barrier()


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def inside():
    """Waits inside torch in a call that takes no signal, as one into a driver that does not return."""
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.SIGRTMAX + 1))
    torch.futures.Future().wait()


FAULTS = {f.__name__: f for f in (sleeps, collective, stopped, inside)}


def played():
    """Whether to stand still now: once in the life of FOLDER."""
    if not os.path.exists(os.path.join(FOLDER, "play")):
        return False
    try:
        os.close(os.open(os.path.join(FOLDER, "played"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def heartbeat():
    if os.environ.get("HANG_HEARTBEATS") != "ft":
        return lambda: None
    import nvidia_resiliency_ext.fault_tolerance as ft

    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat


def load(model, optimizer):
    kept = os.path.join(FOLDER, "kept.pt")
    if not os.path.exists(kept):
        return 0
    state = torch.load(kept, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(model, optimizer, step):
    kept = os.path.join(FOLDER, "kept.pt")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept + ".new")
    os.replace(kept + ".new", kept)


def main():
    say("started", pid=os.getpid(), t=BEGAN)
    say("imported", t=IMPORTED)
    beat = heartbeat()
    dist.init_process_group("gloo", **timeout())
    say("joined")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 250), torch.nn.ReLU(), torch.nn.Linear(250, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = load(model, optimizer)
    ddp = DistributedDataParallel(model)
    reached = os.open(os.path.join(FOLDER, "reached-%d" % RANK), os.O_RDWR | os.O_CREAT, 0o666)
    say("restored", step=step, reached=int(os.pread(reached, 20, 0) or 0))
    inputs, labels, printed = torch.randn(32, 64), torch.randint(0, 16, (32,)), step + 100
    while True:
        step += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        beat()
        if step <= printed:
            say("step", step=step)
        os.pwrite(reached, b"%020d" % step, 0)
        if RANK == 0 and step % KEEP_EVERY == 0:
            save(model, optimizer, step)
        if RANK == 0 and step % 10 == 0:
            say("rate", step=step, step_ms=1000 * PAUSE)
        time.sleep(PAUSE)
        if RANK == ODD and played():
            say("still", s=time.time())
            FAULTS[FAULT]()


def timeout():
    """The process group's timeout, if one is set: torch's default is 30 minutes."""
    from datetime import timedelta

    seconds = os.environ.get("HANG_GROUP_TIMEOUT")
    return {"timeout": timedelta(seconds=float(seconds))} if seconds else {}


if __name__ == "__main__":
    main()
