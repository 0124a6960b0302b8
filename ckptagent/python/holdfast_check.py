"""Tries one rank of a pod before training: alone, or with the ranks of another pod.

The agent starts one process per local rank with the interpreter of the user's launcher:

    python3 holdfast_check.py alone|pair --imports SECONDS --deadline SECONDS --rank R --world N --local-rank L --store HOST:PORT [--bytes N]

The ranks of one trial meet at the store, which rank 0 serves. The process prints one line of JSON per part as it begins,
{"part": NAME}, and a last line with the result:

    {"outcome": "passed", "text": "", "speed": 1.2e12, "backend": "gloo", "model": "cpu", "facts": {…}, "parts": [{"name": "matmul", "seconds": 0.2}, …]}

outcome is passed, failed, wrong (an arithmetic result differs from the known one), absent (other ranks did not come) or late
(the imports did not end within --imports, which speaks for slow storage and not against the node). All other parts together have
--deadline, which begins after the imports and does not count the time in which this process waits for other ranks to come: they may
import longer.
speed is in operations per second alone, in bytes per second in a pair. Without torch only a plain TCP exchange of the two
pods is tried, and backend is "tcp". The process ends by itself within --imports and --deadline; one whose interpreter's lock is held must be ended by the agent.

With the variables of a source of standbys (holdfast_standby) the process imports once, and its forks receive these arguments.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import threading
import time
import zlib
from datetime import timedelta

TRIES = 3
# Matrices: small enough for a CPU, large enough to load a GPU. With entries -1, 0, 0 and 1 the entries of the product stay within ±256,
# which bf16 represents exactly.
SMALL, LARGE = 256, 4096
EXCHANGE = 64 << 20
# How long multiplications are repeated to measure their speed, on a GPU and on a CPU.
MEASURE, MEASURE_CPU = 0.5, 0.25
# Time kept for the last line, and for other ranks to read the last answers.
MARGIN = 0.5
CHUNK = 1 << 20
# gloo exchanges pieces of that size: it copies into memory of its own, which for larger pieces the kernel clears again for each.
PIECE = 4 << 20


class Wrong(Exception):
    """An arithmetic result differs from the known one."""


class Absent(Exception):
    """Other ranks did not come."""


class Failed(Exception):
    """A part failed."""


class Trial:
    def __init__(self, args):
        self.args, self.begin = args, time.monotonic()
        # The part under way ends by end at the latest, the process by last. Without the half of the deadline, what comes after other ranks
        # that came late would have no time.
        self.last = self.begin + args.imports + args.deadline
        self.meet_by = self.last - args.deadline / 2
        self.end = self.begin + args.imports
        self.parts, self.speed, self.backend, self.model, self.facts = [], 0.0, "", "", {}
        self._lock = threading.Lock()

    def left(self):
        return max(0.05, self.end - MARGIN - time.monotonic())

    def imported(self):
        """From now on the deadline counts."""
        self.end = time.monotonic() + self.args.deadline

    def meet(self, part):
        """Runs the part that waits for other ranks: it has its own end, and does not count."""
        begin, end, self.end = time.monotonic(), self.end, self.meet_by
        out = self.run("meet", part)
        self.end = min(self.last, end + time.monotonic() - begin)
        return out

    def run(self, name, part):
        print(json.dumps({"part": name}), flush=True)
        self.parts.append({"name": name, "seconds": None})
        begin = time.monotonic()
        try:
            return part()
        finally:
            self.parts[-1]["seconds"] = round(time.monotonic() - begin, 3)

    def finish(self, outcome, text=""):
        """Prints the result and ends the process at once: destructors of a broken group may hang."""
        with self._lock:
            line = {
                "outcome": outcome, "text": " ".join(text.split())[:500], "speed": self.speed, "backend": self.backend,
                "model": self.model, "facts": self.facts, "parts": self.parts,
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            os._exit(0)

    def watch(self):
        """Ends the process once the part under way has no time left, and names that part."""
        while True:
            left = self.end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, 0.1))
        name = self.parts[-1]["name"] if self.parts else "import"
        if name == "meet":
            self.finish("absent", "other ranks did not come within %g s" % (self.meet_by - self.begin))
        if name == "import":
            self.finish("late", "part import did not end within %g s" % self.args.imports)
        self.finish("failed", "part %s did not end within %g s" % (name, self.args.deadline))


def main(argv=None):
    trial = Trial(parse(argv))
    threading.Thread(target=trial.watch, daemon=True).start()
    try:
        torch = trial.run("import", load)
        trial.imported()
        trial.run("device", lambda: facts(trial, torch))
        if torch is None:
            plain(trial)
        elif trial.args.mode == "alone":
            alone(trial, torch)
        else:
            together(trial, torch)
    except Wrong as e:
        trial.finish("wrong", str(e))
    except Absent as e:
        trial.finish("absent", str(e))
    except BaseException as e:
        name = trial.parts[-1]["name"] if trial.parts else "start"
        trial.finish("failed", "part %s: %s: %s" % (name, type(e).__name__, e))
    trial.finish("passed")


def parse(argv):
    p = argparse.ArgumentParser(prog="holdfast_check")
    p.add_argument("mode", choices=("alone", "pair"))
    p.add_argument("--imports", type=float, required=True, help="seconds that the imports may take")
    p.add_argument("--deadline", type=float, required=True, help="seconds that all parts after the imports may take")
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--world", type=int, default=1)
    p.add_argument("--local-rank", type=int, default=0)
    p.add_argument("--store", default="", help="HOST:PORT, which rank 0 serves")
    p.add_argument("--bytes", type=int, default=EXCHANGE, help="what all ranks exchange")
    args = p.parse_args(argv)
    host, _, port = args.store.rpartition(":")
    if args.world > 1 and not (host and port.isdigit()):
        p.error("--store must be HOST:PORT, where the ranks meet")
    if not 0 <= args.rank < args.world or min(args.imports, args.deadline, args.bytes) <= 0:
        p.error("--rank must be below --world, and --imports, --deadline and --bytes above 0")
    args.host, args.port = host.strip("[]"), int(port or 0)
    return args


def load():
    try:
        import torch
        import torch.distributed
    except ImportError:
        return None
    return torch


def facts(trial, torch):
    """Notes what must be equal, or enough, on all pods of a gang."""
    import resource

    f = trial.facts
    f["nofile"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    f["memlock"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    f["clock"] = time.time()
    for name, path in (("shm", "/dev/shm"), ("disk", os.environ.get("TMPDIR", "/tmp"))):
        try:
            f[name] = shutil.disk_usage(path).free
        except OSError:
            f[name] = 0
    if torch is None:
        trial.backend = "tcp"
        return
    f["torch"] = torch.__version__
    trial.backend, trial.model = "gloo", "cpu"
    if devices(torch):
        count = torch.cuda.device_count()
        f["devices"], f["cuda"] = count, torch.version.cuda
        if trial.args.local_rank >= count:
            raise Failed("local rank %d has no device: torch sees %d" % (trial.args.local_rank, count))
        torch.cuda.set_device(trial.args.local_rank)
        trial.backend, trial.model = "nccl", torch.cuda.get_device_name()
        f["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))


def devices(torch):
    return torch.cuda.is_available() and torch.distributed.is_nccl_available()


def alone(trial, torch):
    trial.run("matmul", lambda: matmul(trial, torch))
    if devices(torch):
        trial.run("copies", lambda: copies(torch))
    if trial.args.world > 1:
        speed = trial.speed
        together(trial, torch)
        trial.speed = speed


def matrix(torch, n, seed):
    """A matrix with entries -1, 0, 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 4, (n, n), generator=g, dtype=torch.int8)
    return (x == 3).to(torch.int8) - (x == 0).to(torch.int8)


def matmul(trial, torch):
    """Multiplies integers in bf16. The sums of all rows and columns of the product are known exactly from sums of the factors."""
    gpu = devices(torch)
    n, device = (LARGE, "cuda") if gpu else (SMALL, "cpu")
    a, b = matrix(torch, n, 1), matrix(torch, n, 2)
    wide_a, wide_b = a.double(), b.double()
    rows, columns = wide_a @ wide_b.sum(1), wide_a.sum(0) @ wide_b
    x, y = a.to(device, torch.bfloat16), b.to(device, torch.bfloat16)

    def verify(product):
        p = product.float()
        for what, got, want in (("row", p.sum(1), rows), ("column", p.sum(0), columns)):
            bad = (got.double().cpu() != want).nonzero()
            if len(bad):
                i = int(bad[0])
                where = "%s %d" % (trial.model, trial.args.local_rank)
                raise Wrong("%s: the sum of %s %d of a product is %g and must be %g; %d of %d sums are wrong"
                            % (where, what, i, float(got[i]), float(want[i]), len(bad), n))  # fmt: skip

    verify(torch.matmul(x, y))
    begin, done, once = time.monotonic(), 0, 20 if gpu else 1
    while True:
        for _ in range(once):
            product = torch.matmul(x, y)
        if gpu:
            torch.cuda.synchronize()
        done += once
        took = time.monotonic() - begin
        if took > min(MEASURE if gpu else MEASURE_CPU, trial.left() / 4):
            break
    trial.speed = 2.0 * n**3 * done / took
    verify(product)


def copies(torch):
    """Copies bytes to the device, within it, and back."""
    host = torch.arange(EXCHANGE // 8, dtype=torch.int64).pin_memory()
    there = host.to("cuda", non_blocking=True)
    again = there.clone()
    back = torch.empty_like(host).pin_memory()
    back.copy_(again, non_blocking=True)
    torch.cuda.synchronize()
    if not torch.equal(host, back):
        raise Wrong("%d of %d words differ after a copy to the device and back" % (int((host != back).sum()), len(host)))


def together(trial, torch):
    """Meets the other ranks and exchanges bytes with them; a failure that shows at once is tried again by all."""
    store = trial.meet(lambda: meet(trial, torch))
    for number in range(TRIES):
        try:
            trial.run("exchange", lambda: exchange(trial, torch, store, number))
            text = ""
        except (Failed, RuntimeError, ValueError) as e:
            text = "%s: %s" % (type(e).__name__, e)
            if trial.backend == "gloo" and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()  # closes the connections, so that the other ranks do not wait in vain
        failures = trial.run("agree", lambda: agree(trial, store, number, text))
        if not failures or trial.left() < 1 or number + 1 == TRIES:
            leave(trial, store)
            if failures:
                raise Failed(failures)
            return


def meet(trial, torch):
    a = trial.args
    try:
        store = torch.distributed.TCPStore(a.host, a.port, a.world, a.rank == 0, timedelta(seconds=trial.left()), wait_for_workers=False)
        store.set("here/%d" % a.rank, "1")
        store.wait(["here/%d" % r for r in range(a.world)], timedelta(seconds=trial.left()))
        return store
    except RuntimeError as e:
        raise Absent("other ranks did not come to %s: %s" % (a.store, str(e).split("\n")[0])) from None


def exchange(trial, torch, store, number):
    dist, a = torch.distributed, trial.args
    if dist.is_initialized():
        dist.destroy_process_group()
    device = "cuda" if trial.backend == "nccl" else "cpu"
    dist.init_process_group(
        trial.backend, store=dist.PrefixStore("try%d" % number, store), rank=a.rank, world_size=a.world, timeout=timedelta(seconds=trial.left())
    )
    gpu = device == "cuda"
    size = a.bytes if gpu or a.mode == "pair" else a.bytes // 8  # the loopback of one pod has no speed of interest
    words = max(1, size // 8 // a.world)
    mine = torch.arange(a.rank, a.rank + words * a.world, a.world, dtype=torch.int64, device=device)
    pieces = mine.split(words if gpu else max(1, PIECE // 8 // a.world))
    theirs = [torch.zeros_like(pieces[0]) for _ in range(a.world)]
    speeds, differs = [], ""
    for first in (True, False, False) if gpu else (True, False):  # all ranks must make as many rounds
        for piece in pieces:
            got = [t[: len(piece)] for t in theirs]
            begin = time.monotonic()
            dist.all_gather(got, piece)
            if gpu:
                torch.cuda.synchronize()
            if first:  # it makes the connections
                differs = differs or difference(torch, a.rank, piece, got)
            else:
                speeds.append(8.0 * len(piece) * a.world / (time.monotonic() - begin))
    if differs:  # only now: other ranks wait in each round for all
        raise Failed(differs)
    trial.speed = sorted(speeds)[len(speeds) // 2]


def difference(torch, rank, mine, got):
    """Whose bytes differ; "": no rank's. What rank r sent is r - rank more than what this one sent. Changes got."""
    for r, other in enumerate(got):
        low, high = torch.aminmax(other.sub_(mine))
        if not int(low) == int(high) == r - rank:
            return "the bytes from rank %d differ from those it sent" % r
    return ""


def agree(trial, store, number, text):
    """The failures of all ranks, so that no rank passes in which another failed; "" if there are none."""
    a = trial.args
    keys = ["end%d/%d" % (number, r) for r in range(a.world)]
    try:
        store.set(keys[a.rank], text[:300] or "passed")
        store.wait(keys, timedelta(seconds=trial.left()))
        said = [store.get(k).decode(errors="replace") for k in keys]
    except RuntimeError:
        return text or "other ranks did not end"
    return "; ".join("rank %d: %s" % (r, s) for r, s in enumerate(said) if s != "passed")


def leave(trial, store):
    """Rank 0 serves the store until the others have read all answers."""
    a = trial.args
    try:
        store.set("left/%d" % a.rank, "1")
        if a.rank == 0:
            store.wait(["left/%d" % r for r in range(a.world)], timedelta(seconds=min(2, trial.left())))
    except RuntimeError:
        pass


def plain(trial):
    """Without torch: rank 0 and the first rank of the other pod exchange bytes over TCP; other ranks have nothing to do."""
    a = trial.args
    if a.mode == "alone" or a.rank not in (0, a.world // 2):
        return
    s = trial.meet(lambda: connect(trial))
    s.settimeout(trial.left())
    trial.run("exchange", lambda: swap(trial, s))


def connect(trial):
    a = trial.args
    try:
        if a.rank == 0:
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            with socket.create_server(("", a.port), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
                server.settimeout(trial.left())
                return server.accept()[0]
        while True:
            try:
                return socket.create_connection((a.host, a.port), timeout=min(2, trial.left()))
            except OSError:
                if trial.left() < 0.1:
                    raise
                time.sleep(0.05)
    except OSError as e:
        raise Absent("the other pod did not come to %s: %s" % (a.store, e)) from None


def swap(trial, s):
    """Sends and receives the same bytes at once, then exchanges checksums of what came."""
    half, a = trial.args.bytes // 2, trial.args
    block = bytes(i * 7 & 255 for i in range(CHUNK))
    want = 0
    for at in range(0, half, CHUNK):
        want = zlib.crc32(block[: half - at], want)
    errors = []

    def send():
        try:
            for at in range(0, half, CHUNK):
                s.sendall(block[: half - at])
        except OSError as e:
            errors.append(e)

    begin = time.monotonic()
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    got = 0
    for at in range(0, half, CHUNK):
        got = zlib.crc32(receive(s, min(CHUNK, half - at)), got)
    sender.join(trial.left())
    if errors or sender.is_alive():
        raise Failed("bytes could not be sent to the other pod: %s" % (errors or "timed out"))
    trial.speed = 2.0 * half / (time.monotonic() - begin)
    s.sendall(b"1" if got == want else b"0")
    if receive(s, 1) != b"1" or got != want:
        raise Failed("the bytes that came differ from those sent")


def receive(s, length):
    out = bytearray()
    while len(out) < length:
        more = s.recv(length - len(out))
        if not more:
            raise Failed("the other pod closed the connection after %d bytes" % len(out))
        out += more
    return bytes(out)


if __name__ == "__main__":
    if "HOLDFAST_STANDBY_FD" in os.environ:  # in an interpreter without the site hook
        import holdfast_standby

        holdfast_standby.hold()
    main(sys.argv[1:])
