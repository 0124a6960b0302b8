"""A plain DistributedDataParallel job over gloo, with its own checkpoint. Once, its ranks make no step for a while, or for ever.

    lesson.py FOLDER SILENCE

It knows nothing of Holdfast, except with the silence "remembers": then it keeps its state in memory.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

FOLDER, SILENCE = sys.argv[1:3]
RANK = int(os.environ["RANK"])
#: The silence follows after so many steps, and lasts so many seconds if it ends by itself; before the first step longer.
AT, LAST, PAUSE, LONG, BEFORE = 25, 60, 0.2, 75, 110
#: The rank that others wait for.
ODD = 3


os.makedirs(FOLDER, exist_ok=True)


def mark(name):
    open(os.path.join(FOLDER, name), "w").close()


def first(name):
    try:
        os.close(os.open(os.path.join(FOLDER, "first-" + name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def trickle(seconds):
    """Reads some files, slowly: 20 KiB a second."""
    end = time.monotonic() + seconds
    with open(sys.executable, "rb", buffering=0) as f:
        while time.monotonic() < end:
            f.read(4 << 10) or f.seek(0)
            time.sleep(0.2)


if SILENCE == "slow-import" and RANK == 1:
    mark("quiet")
    trickle(BEFORE)

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Throttled:
    """A file on slow storage."""

    def __init__(self, path):
        self.file = open(path, "wb", buffering=0)

    def write(self, data):
        data = memoryview(data).cast("B")
        for at in range(0, len(data), 64 << 10):
            self.file.write(data[at : at + (64 << 10)])
            time.sleep(1)
        return len(data)

    def flush(self):
        pass


class Slow(Dataset):
    """Its only item is read slowly, or never."""

    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 1

    def __getitem__(self, i):
        self.read()
        return torch.ones(8)


def for_ever():
    while True:
        time.sleep(3600)


def slow_save():
    if RANK == 0:
        torch.save({"state": torch.zeros(LONG * (16 << 10))}, Throttled(os.path.join(FOLDER, "slow.pt")), _use_new_zipfile_serialization=False)


def evaluation():
    if RANK == 0:
        net, end = torch.nn.Linear(256, 256), time.monotonic() + LONG
        with torch.no_grad():
            while time.monotonic() < end:
                net(torch.ones(256, 256))


def long_evaluation():
    """Evaluation, a third of the time so that other jobs have room."""
    if RANK == 0:
        net, end = torch.nn.Linear(256, 256), time.monotonic() + 180
        with torch.no_grad():
            while time.monotonic() < end:
                began = time.monotonic()
                net(torch.ones(256, 256))
                time.sleep(2 * (time.monotonic() - began))


def storage():
    """A file system that does not answer."""
    if RANK == ODD or SILENCE == "storage-of-two" and RANK == 0:
        with open("/mute/" + os.path.basename(FOLDER), "rb", buffering=0) as f:
            f.read(4096)


def compiles():
    """A compiler runs on one rank: a child that computes, a third of the time so that other jobs have room."""
    if RANK == 2:
        busy = "import time\nend = time.monotonic() + %d\nwhile time.monotonic() < end:\n  sum(range(1000000)); time.sleep(0.05)" % LONG
        subprocess.run([sys.executable, "-c", busy], check=True)


def starved():
    if RANK == 1:
        next(iter(DataLoader(Slow(lambda: trickle(LONG)), num_workers=1)))


def sleeps():
    if RANK == ODD:
        for_ever()


def reads():
    """Data that never ends."""
    if RANK == ODD:
        trickle(1e9)


def dead_loader():
    if RANK == ODD:
        next(iter(DataLoader(Slow(for_ever), num_workers=1)))


def lock():
    """A lock of a C library that is never released, while the interpreter's lock is free."""
    if RANK == ODD:
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def deaf():
    """A call that takes no signal, as into a driver that does not return."""
    if RANK == ODD:
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.SIGRTMAX + 1))
        for_ever()


def desync():
    if RANK == ODD:
        dist.broadcast(torch.ones(4), ODD)
    dist.all_reduce(torch.ones(4))


def deadlock():
    """Two ranks use two groups in different orders."""
    if RANK in (1, 2):
        groups = PAIRS if RANK == 1 else PAIRS[::-1]
        for group in groups:
            dist.all_reduce(torch.ones(4), group=group)


def leaves():
    if RANK == ODD:
        dist.destroy_process_group()
        sys.exit(0)
    dist.new_group([0, 1, 2, 3])


#: Silences that happen once, and those that happen in each process.
ONCE = {"slow-save": slow_save, "evaluation": evaluation, "compiles": compiles, "starved": starved, "sleeps": sleeps,
        "dead-loader": dead_loader, "lock": lock, "deaf": deaf, "remembers": deaf, "only-reported": deaf, "reads": reads, "deadlock": deadlock,
        "long-evaluation": long_evaluation, "storage": storage, "storage-of-two": storage}
ALWAYS = {"deaf-again": deaf, "desync": desync, "leaves": leaves}
START = ("slow-import", "late-first-step")
PAIRS = []


def over(step):
    """Whether this was the last step. The test does what stops a job from outside, and then ends it."""
    if SILENCE in ONCE or SILENCE in ALWAYS or SILENCE in START:
        return step >= LAST
    ended = torch.tensor(float(os.path.exists(os.path.join(FOLDER, "over"))))
    dist.all_reduce(ended)
    return ended.item() > 0


def silence():
    if SILENCE in ONCE and first("%s-%d" % (SILENCE, RANK)):
        mark("quiet")
        ONCE[SILENCE]()
    if SILENCE in ALWAYS:
        mark("quiet")
        ALWAYS[SILENCE]()


def main():
    dist.init_process_group("gloo")
    PAIRS.extend(dist.new_group([1, 2]) for _ in range(2))
    if SILENCE == "late-first-step":
        if RANK == 0:
            mark("quiet")
            trickle(BEFORE)
        dist.barrier()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    kept, start, ck = os.path.join(FOLDER, "kept.pt"), 0, None
    if SILENCE == "remembers":
        import holdfast

        ck = holdfast.attach()
        ck.track(model=model, optimizer=optimizer)
        start = ck.restore()
    elif os.path.exists(kept):
        state = torch.load(kept, weights_only=True)
        start = state["step"]
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print("rank", RANK, "starts from step", start, flush=True)
    step = start
    while not over(step):
        step += 1
        if step == AT + 1:
            silence()
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        if ck is not None:
            ck.save(step)
        elif RANK == 0 and step % 5 == 0 and not (step == AT and SILENCE == "deaf-again"):  # so that it makes steps before the next silence
            torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, kept + ".new")
            os.replace(kept + ".new", kept)
        time.sleep(PAUSE)
    dist.destroy_process_group()


main()
