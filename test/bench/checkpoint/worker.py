"""One rank under one system: it creates a state, changes it step by step, saves or restores it, and reports the time of each.

    python3 worker.py SYSTEM BYTES FOLDER DISK RANK WORLD [restore STEP]

Commands come on standard input, one a line (step N, save N, settle, quit); answers go to standard output, one JSON
object a line. All systems hold the same tensors: a transformer's parameters and the two moments of AdamW. What a
restore brought back is compared value by value, so no system is quick because it kept less.
"""

import contextlib
import ctypes
import json
import mmap
import os
import queue
import sys
import threading
import time

import torch

TILE = 1 << 20
CORES = len(os.sched_getaffinity(0))
THREADS = min(CORES, max(4, min(16, CORES // int(os.environ["LOCAL_WORLD_SIZE"]))))  # as many as the client uses
now = time.perf_counter


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.qkv, self.proj = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.up, self.down = torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)


class Script:
    """The state of a training script: model and optimizer, together of about this many bytes."""

    def __init__(self, size):
        params = size // 12  # float32, and two moments of each
        d = 1024 if size >= 256 << 20 else 128 if size >= 16 << 20 else 64
        each = sum(p.numel() for p in Block(d).parameters())
        blocks = max(1, int(params * 0.8) // each)
        rows = max(1, (params - blocks * each) // d)
        self.model = torch.nn.Sequential(torch.nn.Embedding(rows, d), *(Block(d) for _ in range(blocks)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)

    def trained(self):
        """The state as it is once the optimizer has stepped, with values that differ by tensor and step."""
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        tile = pattern()
        with torch.no_grad():
            for i, t in enumerate(self.tensors()):
                flat = t.view(-1)
                for at in range(0, flat.numel(), TILE):
                    part = flat[at : at + TILE]
                    torch.add(tile[: part.numel()], i, out=part)
        return self

    def tensors(self):
        state = self.optimizer.state
        return [t.detach() for p in self.model.parameters() for t in (p, *(state[p][k] for k in sorted(state.get(p, ()))))]

    def bytes(self):
        return sum(t.nbytes for t in self.tensors())

    def step(self):
        torch._foreach_add_(self.tensors(), 1.0)

    def check(self, step):
        wrong = differing(self.tensors(), step)
        if wrong is not None:
            raise SystemExit("tensor %d is not as it was at step %d" % (wrong, step))

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def by_name(self):
        """All tensors, with the optimizer's state, in the form that DCP expects."""
        names = {p: n for n, p in self.model.named_parameters()}
        out = {"model." + n: p.detach() for n, p in self.model.named_parameters()}
        for p, s in self.optimizer.state.items():
            out.update(("optimizer.%s.%s" % (names[p], k), v) for k, v in s.items())
        return out


def differing(tensors, step):
    """The number of the first tensor that does not have its values of a step, or None."""
    tile = pattern()
    for i, t in enumerate(tensors):
        flat = t.reshape(-1)
        for at in range(0, flat.numel(), TILE):
            part = flat[at : at + TILE]
            if not torch.equal(part, tile[: part.numel()] + (i + step)):
                return i
    return None


def pattern():
    return torch.randint(0, 4096, (TILE,), generator=torch.Generator().manual_seed(1)).float()


class Copiers:
    """memcpy by several threads that are already running."""

    def __init__(self, threads=THREADS):
        self.work, self.done = queue.SimpleQueue(), queue.SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            for to, source, n in self.work.get():
                ctypes.memmove(to, source, n)
            self.done.put(None)

    def copy(self, pieces):
        """Each thread gets an equal part of the bytes."""
        share = -(-sum(n for _, _, n in pieces) // THREADS)
        lists, left = [[]], share
        for to, source, n in pieces:
            while n:
                part = min(n, left)
                lists[-1].append((to, source, part))
                to, source, n, left = to + part, source + part, n - part, left - part
                if not left:
                    lists.append([])
                    left = share
        for one in lists:
            self.work.put(one)
        for _ in lists:
            self.done.get()


def mapped(path, size=None):
    with open(path, "r+b" if size is None else "w+b") as f:
        if size is not None:
            f.truncate(size)
        return torch.frombuffer(mmap.mmap(f.fileno(), os.fstat(f.fileno()).st_size), dtype=torch.uint8)


class Memcpy:
    """The same bytes into the same kind of memory, tensor by tensor, with the same number of threads, warm.

    One call for all bytes would be faster: the C library writes past the caches what is larger than they are."""

    def __init__(self, o):
        self.path, self.copiers = os.path.join(o.folder, "memcpy-%d" % o.rank), Copiers()
        if o.restore:
            return
        tensors = Script(o.size).trained().tensors()
        self.source = torch.cat([t.reshape(-1) for t in tensors])
        self.to = mapped(self.path, self.source.nbytes).fill_(0)
        self.script, self.pieces, at = Flat(self.source), [], 0
        for t in tensors:
            self.pieces.append((self.to.data_ptr() + at, self.source.data_ptr() + at, t.nbytes))
            at += t.nbytes

    def save(self, step):
        began = now()
        self.copiers.copy(self.pieces)
        return now() - began

    def settle(self):
        return {}

    def restore(self, script, step):
        """Into memory like the script's: parameters have their pages already, moments do not."""
        source = mapped(self.path)
        began = now()
        at, pieces = source.data_ptr(), []
        for p in script.model.parameters():
            script.optimizer.state[p] = {"exp_avg": torch.empty_like(p), "exp_avg_sq": torch.empty_like(p), "step": torch.empty(())}
            for t in (p, *(script.optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq", "step"))):
                pieces.append((t.data_ptr(), at, t.nbytes))
                at += t.nbytes
        self.copiers.copy(pieces)
        return {"restore": now() - began}


class Flat:
    def __init__(self, t):
        self.t = t

    def step(self):
        self.t.add_(1.0)

    def bytes(self):
        return self.t.nbytes


class Holdfast:
    def __init__(self, o):
        import holdfast

        self.ck = holdfast.attach()
        if not self.ck.active:
            raise SystemExit("the client has no arena")
        if not o.restore:
            with self.ck.skip_init():
                self.script = Script(o.size)
            self._track(self.script.trained())
            self.ck.restore()

    def _track(self, script):
        self.ck.track(model=script.model, optimizer=script.optimizer)

    def save(self, step):
        began = now()
        self.saved = self.ck.save(step)
        took = now() - began
        if not self.saved:
            raise SystemExit("save(%d): %r" % (step, self.saved))
        return took

    def settle(self):
        while not self.saved.sealed:
            time.sleep(0.001)
        return {}

    def restore(self, script, step):
        began = now()
        self._track(script)
        got = self.ck.restore()
        took = now() - began
        if got != step:
            raise SystemExit("restored %d, want %d" % (got, step))
        return {"restore": took}


class TorchSave:
    def __init__(self, o, folder, sync):
        self.path, self.sync = os.path.join(folder, "torch-%d.pt" % o.rank), sync
        if not o.restore:
            self.script = Script(o.size).trained()

    def save(self, step):
        began = now()
        with open(self.path, "wb") as f:
            torch.save(self.script.state_dict(), f)
            if self.sync:
                f.flush()
                os.fsync(f.fileno())
        self.took = now() - began
        return self.took

    def settle(self):
        return {"durable": self.took} if self.sync else {}

    def restore(self, script, step):
        began = now()
        state = torch.load(self.path)
        loaded = now()
        script.model.load_state_dict(state["model"])
        script.optimizer.load_state_dict(state["optimizer"])
        return {"load": loaded - began, "restore": now() - began}


class DLRover:
    """Flash Checkpoint of dlrover. Its agent, another process, holds the memory, as under dlrover-run.

    Its load returns views of that memory. A model's load_state_dict copies them; an optimizer's keeps a tensor of the right type and device as it
    is, so that training would change the saved state. Equal work is to copy these, too, before that; dlrover-views leaves it out."""

    def __init__(self, o):
        sys.path.append(os.environ["BENCH_DLROVER"])  # behind the interpreter's own packages, so that PyTorch is the same
        from dlrover.python.common.constants import CheckpointConstant
        from dlrover.python.common.storage import KeepLatestStepStrategy
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self.types, self.views, self.rank = StorageType, o.system == "dlrover-views", o.rank
        self.folder = os.path.join(o.disk, "dlrover")
        self.tracker = os.path.join(self.folder, CheckpointConstant.TRACER_FILE_NAME)
        self.ck = DdpCheckpointer(self.folder, local_shard_num=o.world, global_shard_num=o.world, deletion_strategy=KeepLatestStepStrategy(1, self.folder))
        if not o.restore:
            self.script = Script(o.size).trained()

    def save(self, step):
        self.step, self.began = step, now()
        self.ck.save_checkpoint(step, self.script.state_dict(), storage_type=self.types.MEMORY)
        took = now() - self.began
        if self.ck._engine._cached_step != step:
            raise SystemExit("save_checkpoint(%d) was skipped" % step)
        self.ck.save_checkpoint(step, self.script.state_dict(), storage_type=self.types.DISK)  # the step is in memory: only a message to the agent
        return took

    def settle(self):
        """Until the agent reports the step as complete; its files are synced after that, by this process."""
        while self._complete() != self.step:
            if now() - self.began > 60:
                raise SystemExit("step %d is not in storage" % self.step)
            time.sleep(0.001)
        complete, folder = now() - self.began, os.path.join(self.folder, str(self.step))
        for path in (os.path.join(folder, "rank_%d.pt" % self.rank), folder):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        return {"complete": complete, "durable": now() - self.began}

    def _complete(self):
        try:
            with open(self.tracker) as f:
                return int(f.read() or 0)
        except FileNotFoundError:
            return 0

    def restore(self, script, step):
        began = now()
        state = self.ck.load_checkpoint()
        loaded = now()
        script.model.load_state_dict(state["model"])
        if not self.views:
            state["optimizer"]["state"] = {i: {k: v.clone() for k, v in s.items()} for i, s in state["optimizer"]["state"].items()}
        script.optimizer.load_state_dict(state["optimizer"])
        took = now() - began
        if self.ck._engine._shm_handler.shared_memory is None:
            raise SystemExit("the state came from storage")
        return {"load": loaded - began, "restore": took}

    def changed(self, step):
        """Whether training has changed the saved state."""
        state = self.ck.load_checkpoint()
        moments = state["optimizer"]["state"]
        tensors = [t for i, p in enumerate(state["model"].values()) for t in (p, *(moments[i][k] for k in sorted(moments[i])))]
        return differing(tensors, step) is not None


def dlrover_agent(say):
    """What dlrover-run's agent does for checkpoints."""
    sys.path.append(os.environ["BENCH_DLROVER"])
    from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver

    AsyncCheckpointSaver.start_async_saving_ckpt()
    say()
    for line in sys.stdin:
        if line.split() != ["restart"]:
            break
        AsyncCheckpointSaver.reset()
        say()
    saver = AsyncCheckpointSaver.get_ckpt_saver()
    if saver is not None:
        saver.close()


class DcpThread:
    """async_save as its manual recommends for speed: staging memory and plans are kept. Pinned memory needs a GPU."""

    def __init__(self, o):
        import warnings

        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import staging

        warnings.simplefilter("ignore")
        self.dcp, self.folder, self.last = dcp, o.disk, None
        self.alone = o.world == 1
        self.planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        self.writer = dcp.FileSystemWriter(os.path.join(o.disk, o.system))
        shared = staging.StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False)
        self.stager = staging.DefaultStager(shared)
        self.script = Script(o.size).trained()
        # Each rank holds different tensors.
        self.prefix = "rank%d." % o.rank

    def state(self):
        return {self.prefix + k: v for k, v in self.script.by_name().items()}

    def save(self, step):
        self.began = now()
        self.last = self.dcp.async_save(self.state(), storage_writer=self.writer, planner=self.planner, async_stager=self.stager, no_dist=self.alone)
        return now() - self.began

    def settle(self):
        self.last.result()
        return {"durable": now() - self.began}


class Options:
    def __init__(self, argv):
        self.system, self.size, self.folder, self.disk, self.rank, self.world = argv[0], int(argv[1]), argv[2], argv[3], int(argv[4]), int(argv[5])
        self.restore = int(argv[7]) if len(argv) > 6 else 0


def make(o):
    if o.system == "torch.save":
        return TorchSave(o, o.folder, False)
    if o.system == "torch.save+fsync":
        return TorchSave(o, o.disk, True)
    if o.system.startswith("dlrover"):
        return DLRover(o)
    return {"memcpy": Memcpy, "dcp-thread": DcpThread}.get(o.system, Holdfast)(o)


def join(o):
    """Ranks join a process group, as those of a training script do."""
    if o.world > 1:
        store = "file://" + os.path.join(o.folder, "%s-store-%d" % (o.system, o.restore))
        torch.distributed.init_process_group("gloo", init_method=store, rank=o.rank, world_size=o.world)


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with results

    def say(**fields):
        out.write(json.dumps(fields) + "\n")
        out.flush()

    o = Options(sys.argv[1:])
    if o.system == "dlrover-agent":
        dlrover_agent(say)
        return
    join(o)
    system = make(o)
    if o.restore:
        with system.ck.skip_init() if o.system.endswith("skip-init") else contextlib.nullcontext():
            script = Script(o.size)
        say()
        sys.stdin.readline()
        cpu = time.process_time()
        took = system.restore(script, o.restore)
        took["cpu"] = time.process_time() - cpu
        script.step()
        at, took["start_cpu"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.process_time()
        script.check(o.restore + 1)
        if isinstance(system, DLRover):
            took["changed"] = system.changed(o.restore)
            if took["changed"] and not system.views:
                raise SystemExit("the saved state changed")
        say(at=at, **took)
        for line in sys.stdin:
            if line.strip() != "modules":
                break
            say(modules=list(sys.modules))
        return
    say(bytes=system.script.bytes())
    for line in sys.stdin:
        verb, *number = line.split()
        if verb == "step":
            system.script.step()
            say()
        elif verb == "save":
            at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            cpu = time.process_time()
            stall = system.save(int(number[0]))
            say(stall=stall, cpu=time.process_time() - cpu, at=at)
        elif verb == "durable":
            if not system.saved.durable:
                raise SystemExit("the handle does not say that the step is durable")
            say()
        elif verb == "settle":
            say(**system.settle())
        elif verb == "modules":
            say(modules=list(sys.modules))
        else:
            break


main()
