"""A plain DistributedDataParallel job over gloo that again and again makes steps, and then is silent. It knows nothing of Holdfast.

    many.py FOLDER NUMBER:KIND:RANK:SECONDS ...

In each silence rank RANK does what KIND says for at least that many seconds, while the others wait; in a kind of all ranks, RANK is
longest. Rank 0 writes into FOLDER/events when the silence NUMBER begins and ends.
"""

import ctypes
import gc
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOLDER, SILENCES = sys.argv[1], [s.split(":") for s in sys.argv[2:]]
RANK = int(os.environ["RANK"])
#: Before each silence there are steps for so many seconds: each second the gang is seen to move, and the silences must be less than one in
#: a hundred of these times, or Holdfast waits longer before it looks.
BEFORE, PAUSE = 65, 0.3
#: What slow storage moves in a second.
BLOCK = 64 << 10

os.makedirs(FOLDER, exist_ok=True)
SCRATCH = tempfile.mkdtemp(prefix="rank-%d-" % RANK, dir=FOLDER)
NUMBER = ODD = SECONDS = None  # of the present silence
torch.set_num_threads(1)


def event(what):
    if RANK == 0:
        with open(os.path.join(FOLDER, "events"), "a") as f:
            f.write(json.dumps({"number": NUMBER, "what": what, "at": time.time()}) + "\n")


def first():
    """Whether this silence begins for the first time: after a restart the ranks are not silent again."""
    try:
        os.close(os.open(os.path.join(FOLDER, "first-%d-%d" % (NUMBER, RANK)), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def until_over(work):
    """Works for that many seconds on parts, a third of the time so that other jobs have room."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        work()
        time.sleep(2 * min(2, time.monotonic() - began))


def python(text, *args, **more):
    return subprocess.Popen([sys.executable, "-S", "-c", text, *map(str, args)], **more)


class Slow:
    """A file on slow storage: each block takes a second, and is written through."""

    def __init__(self, path, mode):
        self.file = open(path, mode, buffering=0)

    def write(self, data):
        data = memoryview(data).cast("B")
        for at in range(0, len(data), BLOCK):
            self.file.write(data[at : at + BLOCK])
            os.fsync(self.file.fileno())
            time.sleep(1)
        return len(data)

    def readinto(self, into):
        into = memoryview(into).cast("B")
        for at in range(0, len(into), BLOCK):
            n = self.file.readinto(into[at : at + BLOCK])
            time.sleep(n / BLOCK)
            if n < len(into[at : at + BLOCK]):
                return at + n
        return len(into)

    def read(self, size=-1):
        out = bytearray(os.fstat(self.file.fileno()).st_size - self.file.tell() if size < 0 else size)
        return bytes(out[: self.readinto(out)])

    def readline(self):
        return self.file.readline()

    def seek(self, *args):
        return self.file.seek(*args)

    def tell(self):
        return self.file.tell()

    def flush(self):
        pass


def state(seconds):
    return {"state": torch.zeros(int(seconds * BLOCK) // 4)}


def save(seconds=None):
    torch.save(state(seconds or SECONDS), Slow(os.path.join(SCRATCH, "saved.pt"), "wb"), _use_new_zipfile_serialization=False)


def load(seconds=None):
    path = os.path.join(SCRATCH, "loaded.pt")
    torch.save(state(seconds or SECONDS), path, _use_new_zipfile_serialization=False)
    torch.load(Slow(path, "rb"), weights_only=True)


def save_all():
    save(SECONDS if RANK == ODD else SECONDS / 2 + RANK)


def load_all():
    load(SECONDS if RANK == ODD else SECONDS / 2 + RANK)


def evaluation():
    net = torch.nn.Linear(256, 256)
    with torch.no_grad():
        until_over(lambda: net(torch.ones(256, 256)))


def uneven():
    """Evaluation on all ranks; one has more data than the others."""
    net, end = torch.nn.Linear(256, 256), time.monotonic() + (SECONDS if RANK == ODD else 5 * RANK)
    with torch.no_grad():
        while time.monotonic() < end:
            began = time.monotonic()
            net(torch.ones(256, 256))
            time.sleep(2 * (time.monotonic() - began))


def build():
    """g++ compiles a project of many files, one at a time, without a cache."""
    source = os.path.join(SCRATCH, "part.cc")
    parts = iter(range(1000000))

    def one():
        with open(source, "w") as f:
            f.write("#include <map>\n#include <regex>\n#include <string>\nbool part%d(std::map<std::string, std::regex>& m, const std::string& s) {\n"
                    "  for (auto& [k, v] : m) if (std::regex_match(s, v)) return true;\n  m[s] = std::regex(s);\n  return false;\n}\n" % next(parts))
        subprocess.run(["g++", "-std=c++17", "-O2", "-c", source, "-o", source + ".o"], check=True)

    until_over(one)


def inductor():
    """torch.compile with a cold cache compiles one model after another."""
    sizes = iter(range(1000000))

    def one():
        torch._dynamo.reset()
        size = 8 + next(sizes)
        net = torch.compile(torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.GELU(), torch.nn.LayerNorm(size)))
        with torch.no_grad():
            net(torch.ones(4, size))

    os.environ.update(TORCHINDUCTOR_CACHE_DIR=SCRATCH, TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
                      CPATH="/usr/include/python%d.%d" % sys.version_info[:2])
    until_over(one)


class Items(Dataset):
    """Its only item is many blocks of a file on slow storage."""

    def __len__(self):
        return 1

    def __getitem__(self, i):
        with open(sys.executable, "rb", buffering=0) as f:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                f.read(4 << 10) or f.seek(0)
                time.sleep(0.2)
        return torch.ones(8)


def loader():
    next(iter(DataLoader(Items(), num_workers=1)))


def in_process_loader():
    next(iter(DataLoader(Items(), num_workers=0)))


SOURCE = "import os, sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end:\n  os.write(1, bytes(4096)); time.sleep(0.5)"


def pipe():
    """Data from another program, slowly."""
    with python(SOURCE, SECONDS, stdout=subprocess.PIPE, bufsize=0) as child:
        while child.stdout.read(64 << 10):
            pass


def connection():
    """Data from a server, slowly."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener.accept()[0] as c:
            until_over(lambda: (c.sendall(bytes(16 << 10)), time.sleep(0.5)))

    threading.Thread(target=serve).start()
    with socket.create_connection(listener.getsockname()) as c:
        while c.recv(64 << 10):
            pass


def unpack():
    """A child process unpacks data."""
    packs = "import sys, time, lzma\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end:\n  lzma.decompress(lzma.compress(bytes(1 << 20))); time.sleep(0.2)"
    python(packs, SECONDS).wait()


def upload():
    """A child process copies a checkpoint, slowly."""
    copies = ("import os, sys, time\nend = time.monotonic() + float(sys.argv[1])\nf = open(sys.argv[2], 'wb', 0)\n"
              "while time.monotonic() < end:\n  f.write(bytes(1 << 16)); os.fsync(f.fileno()); time.sleep(1)")
    python(copies, SECONDS, os.path.join(SCRATCH, "copy")).wait()


def imports():
    """Imports large modules that were never compiled."""
    sys.path.insert(0, SCRATCH)
    names = iter(range(1000000))

    def one():
        name = "module_%d_%d" % (NUMBER, next(names))
        with open(os.path.join(SCRATCH, name + ".py"), "w") as f:
            f.writelines("def f%d(a, b=%d):\n    return {'a': a + b, 'b': [a, b, %d]}\n" % (i, i, i) for i in range(4000))
        importlib.invalidate_caches()
        importlib.import_module(name)

    until_over(one)


def signalled():
    """A stop signal, as Ctrl-Z in a shell, and later its end."""
    stops = "import os, signal, sys, time\np = os.getppid()\nos.kill(p, signal.SIGSTOP)\ntime.sleep(float(sys.argv[1]))\nos.kill(p, signal.SIGCONT)"
    python(stops, SECONDS).wait()


def traced():
    """A debugger holds all threads by ptrace."""
    holds = """
import ctypes, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
c.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
parent = os.getppid()
threads = [int(t) for t in os.listdir("/proc/%d/task" % parent)]
for t in threads:
    if c.ptrace(16, t, None, None):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(t, 0x40000000)  # __WALL
time.sleep(float(sys.argv[1]))
for t in threads:
    c.ptrace(17, t, None, None)  # PTRACE_DETACH
"""
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)  # PR_SET_PTRACER, any
    if python(holds, SECONDS).wait():
        raise SystemExit("the debugger failed")


def collection():
    """The garbage collector passes over many objects."""
    objects = [[{}] for _ in range(300000)]
    until_over(gc.collect)
    return objects


def arrays():
    """numpy computes in one thread."""
    a = numpy.ones((600, 600))
    until_over(lambda: a @ a)


def holds_lock():
    """Calls of C functions that take seconds and keep the interpreter's lock."""
    numbers = range(60000000)
    until_over(lambda: sum(numbers))


#: Kinds of one rank, and kinds of all ranks.
ONE = {
    "save": save, "load": load, "evaluation": evaluation, "g++": build, "torch.compile": inductor, "loader": loader,
    "loader-no-worker": in_process_loader, "pipe": pipe, "connection": connection, "unpack": unpack, "upload": upload, "import": imports,
    "stop-signal": signalled, "debugger": traced, "collection": collection, "numpy": arrays, "lock": holds_lock,
}
ALL = {"save-all": save_all, "load-all": load_all, "evaluation-all": uneven}


def silence(kind):
    """Is silent, unless it was before a restart; then it returns False."""
    if not first():
        return False
    event("begins")
    if kind in ALL:
        ALL[kind]()
    elif RANK == ODD:
        ONE[kind]()
    if NUMBER % 2 == 0:
        dist.barrier()
    return True


def main():
    global NUMBER, ODD, SECONDS
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    ends = False
    for number, kind, odd, seconds in [*SILENCES, (-1, "", 0, 0)]:
        for _ in range(int((BEFORE if kind else 5) / PAUSE)):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            if ends:
                event("ends")
                ends = False
            time.sleep(PAUSE)
        NUMBER, ODD, SECONDS = int(number), int(odd), float(seconds)
        ends = bool(kind) and silence(kind)
    dist.destroy_process_group()
    shutil.rmtree(SCRATCH)


main()
