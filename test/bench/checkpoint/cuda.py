# Saves of a state that lies on a device. Runs behind worker.py and training.py, in the same process.
#
#     … cuda BYTES FOLDER DISK RANK WORLD [restore STEP]
#
# One command a line; all times are in seconds.
#
# sums: what the state comes to, for another process to compare with.
# save: one save, of a device that has nothing else to do, and until it is sealed.
# torchsave, dcp: the same by PyTorch, the latter with pinned memory that is kept, until it could train on.
# register: steps until the slots are registered; how long that took, and the longest step beside it.
# blocks STEPS: steps of forward, backward and AdamW that take longer than a copy, without saves and with one before each.

CHUNK = 1 << 30


class OnDevice(Trainer):
    def __init__(self, o):
        if not torch.cuda.is_available():
            raise SystemExit("this PyTorch sees no CUDA device: name another interpreter with --python, or another of --cases")
        torch.set_float32_matmul_precision("high")
        with torch.device("cuda"):
            script = Shaped(o.size)
        super().__init__(script)
        self.o, self.at = o, o.restore
        if o.restore:
            return
        self.ck.restore()
        for p in script.model.parameters():
            p.grad = torch.zeros_like(p)
        self.optimize()

    def step(self, micro):
        for _ in range(micro):
            self.gradients(2048)
        self.optimize()

    def timed(self, micro, saving=False):
        began = now()
        saved, inside, self.in_hook = None, 0.0, 0.0
        if saving:
            saved, inside = self.keep()
        self.step(micro)
        torch.cuda.synchronize()
        return now() - began, saved, inside + self.in_hook

    def limit(self):
        """How long the same bytes take into pinned memory, one copy after another."""
        pinned = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)
        took = []
        for _ in range(3):
            torch.cuda.synchronize()
            began, at = now(), 0
            for t in self.script.tensors():
                raw = t.reshape(-1).view(torch.uint8)
                for i in range(0, raw.numel(), CHUNK):
                    part = raw[i : i + CHUNK]
                    if at + part.numel() > CHUNK:
                        at = 0
                    pinned[at : at + part.numel()].copy_(part, non_blocking=True)
                    at += part.numel()
            torch.cuda.synchronize()
            took.append(now() - began)
        return sorted(took)[1]

    def save(self):
        torch.cuda.synchronize()
        began = now()
        saved, took = self.keep(blocking=True)
        settled(saved)
        return {"stall": took, "durable": now() - began}

    def torchsave(self):
        return tried(self._torchsave)

    def dcp(self):
        return tried(self._dcp)

    def _torchsave(self):
        torch.cuda.synchronize()
        path = os.path.join(self.o.folder, "torch.pt")
        began = now()
        torch.save(self.script.state_dict(), path)
        took = now() - began
        os.unlink(path)
        return {"stall": took}

    def _dcp(self):
        import warnings

        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import staging

        warnings.simplefilter("ignore")
        state = self.script.by_name()
        if not hasattr(self, "stager"):
            pinned = staging.StagingOptions(use_pinned_memory=True, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=True)
            self.stager, self.planner = staging.DefaultStager(pinned), dcp.DefaultSavePlanner(enable_plan_caching=True)
        torch.cuda.synchronize()
        began = now()
        writer = dcp.FileSystemWriter(os.path.join(self.o.folder, "dcp"), overwrite=True)
        future = dcp.async_save(state, storage_writer=writer, planner=self.planner, async_stager=self.stager, no_dist=True)
        took = now() - began
        future.result()
        return {"stall": took, "durable": now() - began}

    def register(self):
        for _ in range(3):
            plain = self.timed(1)[0]
        began, longest = now(), 0.0
        self.keep(blocking=True)  # begins it
        thread = self.ck._devices._registering
        while thread is not None and thread.is_alive():
            longest = max(longest, self.timed(1)[0])
        if self.ck._devices.refused:
            raise SystemExit("the driver registers no memory of the arena: CUDA error %d" % self.ck._devices.refused)
        return {"restore": now() - began, "load": longest, "step": plain}

    def blocks(self, steps):
        copy = self.limit()
        self.timed(1)
        micro = max(1, int(1.5 * copy / self.timed(1)[0]) + 1)
        for _ in range(6):
            settled(self.timed(micro, True)[1])
        before, out = self.ck._record, {"each": [], "memcpy": copy, "stall": 0.0, "step": 0.0}
        for n in range(2 * steps):
            took, saved, inside = self.timed(micro, n % 2 == 1)
            if saved is not None:
                settled(saved)
                out["each"].append(inside)
            out["stall"] += (took if saved is not None else -took) / steps
            out["step"] += 0 if saved is not None else took / steps
        after = self.ck._record
        return {**out, "overlapped": after.overlapped - before.overlapped, "dropped": after.dropped - before.dropped}

    def sums(self):
        return {"each": [sum(t.double().sum().item() for t in self.script.tensors())]}

    def restored(self):
        torch.cuda.synchronize()
        began = now()
        got = self.ck.restore()
        torch.cuda.synchronize()
        took = now() - began
        if got != self.o.restore:
            raise SystemExit("restored %d, want %d" % (got, self.o.restore))
        return {"restore": took, **self.sums()}


class Shaped(Script):
    """A transformer with parts of the size of a large model's."""

    def __init__(self, size):
        params = size // 12
        d = 2048 if size >= 4 << 30 else 1024
        each = 12 * d * d
        blocks = max(1, int(params * 0.9) // each)
        rows = max(1, (params - blocks * each) // d)
        self.model = torch.nn.Sequential(torch.nn.Embedding(rows, d), *(Block(d) for _ in range(blocks)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)


def tried(what):
    """Runs one call of a rival; its failure gives no figure and does not end the others."""
    try:
        return what()
    except Exception as e:
        return {"failed": "%s: %s" % (type(e).__name__, e)}


serve(OnDevice, ("save", "torchsave", "dcp", "register", "blocks", "sums", "restored"))
