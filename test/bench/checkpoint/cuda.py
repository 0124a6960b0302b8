# Saves of a state that lies on a device. Runs behind worker.py, in the same process.
#
#     … cuda BYTES FOLDER DISK RANK WORLD [restore STEP]
#
# Commands come one a line; all times are in seconds.
#
# limit: the same bytes into pinned memory, copy behind copy.
# save: one save, of a device that has nothing else to do, and until it is sealed.
# torchsave, dcp: the same by PyTorch, the latter with pinned memory that is kept, until it could train on.
# register: steps until the slots are registered; how long that took, and the longest step beside it.
# blocks STEPS: steps of forward, backward and AdamW that take longer than a copy, without saves and with one before each.

CHUNK = 1 << 30


class OnDevice:
    def __init__(self, o):
        import holdfast

        torch.set_float32_matmul_precision("high")
        self.at = o.restore
        with torch.device("cuda"):
            self.script = Shaped(o.size)
        self.ck = holdfast.attach()
        self.ck.track(model=self.script.model, optimizer=self.script.optimizer)
        self.o, self.in_hook = o, 0.0
        if o.restore:
            return
        self.ck.restore()
        for p in self.script.model.parameters():
            p.grad = torch.zeros_like(p)
        self.script.optimizer.step()
        self.script.optimizer.zero_grad(set_to_none=True)
        if self.ck._overlap is not None:
            watch = self.ck._overlap.watch
            before = watch._before

            def timed():
                began = now()
                before()
                self.in_hook += now() - began

            watch._before = timed

    def step(self, micro=1):
        embedding, *blocks = self.script.model
        for _ in range(micro):
            x = embedding(torch.randint(0, embedding.num_embeddings, (2048,), device="cuda"))
            for b in blocks:
                x = x + b.proj(b.qkv(b.ln1(x))[..., : x.shape[-1]])
                x = x + b.down(torch.nn.functional.gelu(b.up(b.ln2(x))))
            x.square().mean().backward()
        self.script.optimizer.step()
        self.script.optimizer.zero_grad(set_to_none=True)

    def timed(self, micro, saving=False):
        began = now()
        saved, inside, self.in_hook = None, 0.0, 0.0
        if saving:
            saved, inside = self.save_now(blocking=False)
        self.step(micro)
        torch.cuda.synchronize()
        return now() - began, saved, inside + self.in_hook

    def save_now(self, blocking):
        self.at += 1
        began = now()
        while not (saved := self.ck.save(self.at, blocking=blocking)):
            if saved.reason != "no free slot" or now() - began > 60:
                raise SystemExit("save(%d): %r" % (self.at, saved))
        return saved, now() - began

    def limit(self):
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
        return {"memcpy": sorted(took)[1]}

    def save(self):
        torch.cuda.synchronize()
        began = now()
        saved, took = self.save_now(blocking=True)
        settled(saved)
        return {"stall": took, "durable": now() - began}

    def torchsave(self):
        torch.cuda.synchronize()
        path = os.path.join(self.o.folder, "torch.pt")
        began = now()
        torch.save(self.script.state_dict(), path)
        took = now() - began
        os.unlink(path)
        return {"stall": took}

    def dcp(self):
        import warnings

        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import staging

        warnings.simplefilter("ignore")
        names = {p: n for n, p in self.script.model.named_parameters()}
        state = {"model." + n: p.detach() for n, p in self.script.model.named_parameters()}
        for p, s in self.script.optimizer.state.items():
            state.update(("optimizer.%s.%s" % (names[p], k), v) for k, v in s.items())
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
        self.save_now(blocking=True)  # begins it
        thread = self.ck._devices._registering
        while thread is not None and thread.is_alive():
            longest = max(longest, self.timed(1)[0])
        if self.ck._devices.refused:
            raise SystemExit("the driver registers no memory of the arena: CUDA error %d" % self.ck._devices.refused)
        return {"restore": now() - began, "load": longest, "step": plain}

    def blocks(self, steps):
        copy = self.limit()["memcpy"]
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
        return [sum(t.double().sum().item() for t in self.script.tensors())]

    def restored(self):
        torch.cuda.synchronize()
        began = now()
        got = self.ck.restore()
        torch.cuda.synchronize()
        took = now() - began
        if got != self.o.restore:
            raise SystemExit("restored %d, want %d" % (got, self.o.restore))
        return {"restore": took, "each": self.sums()}


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


def settled(saved):
    deadline = now() + 60
    while not saved.sealed:
        if now() > deadline or not saved:
            raise SystemExit("%r is not sealed" % saved)
        time.sleep(0.0005)


def on_device():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**fields):
        out.write(json.dumps(fields) + "\n")
        out.flush()

    o = Options(sys.argv[1:])
    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch sees no CUDA device: name another interpreter with --python, or another of --cases")
    it = OnDevice(o)
    say(bytes=it.script.bytes())
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "sums":
            say(each=it.sums())
        elif verb in ("dcp", "torchsave"):
            try:
                say(**getattr(it, verb)())
            except Exception as e:  # its own
                say(failed="%s: %s" % (type(e).__name__, e))
        elif verb in ("limit", "save", "register", "blocks", "restored"):
            say(**getattr(it, verb)(*map(int, numbers)))
        else:
            break


on_device()
