# What saves cost real training when they are copied beside it. Runs behind worker.py and training.py, in the same process.
#
#     … overlapped BYTES FOLDER DISK RANK WORLD
#
# Commands come one a line.
#
# block THREADS STEPS TOKENS: steps are forward, backward and AdamW on THREADS threads, once without saves, once with a save before each,
# and once with a bare copy of the same bytes by one thread beside each, which is over before the optimizer steps; the order is rotated.
# A block ends when its last copy is sealed.
#
# steps THREADS STEPS TOKENS: steps alone. What else runs meanwhile is the caller's.


class Training(Trainer):
    def __init__(self, o):
        script = Script(o.size).trained()
        with torch.no_grad():
            for p in script.model.parameters():
                p.normal_(0, 0.02)
        for group in script.optimizer.param_groups:
            group["lr"] = 1e-6
        for state in script.optimizer.state.values():
            for k in ("exp_avg", "exp_avg_sq"):
                state[k].zero_()
        super().__init__(script)
        self.ck.restore()
        self.blocks = 0
        self.aside = Aside()
        self.script.optimizer.register_step_pre_hook(lambda *_: self.aside.wait())
        tensors = self.script.tensors()
        self.to = mapped(os.path.join(o.folder, "overlapped-memcpy-%d" % o.rank), sum(t.nbytes for t in tensors))
        self.to.fill_(0)
        at, self.pieces, self.copiers = self.to.data_ptr(), [], Copiers()
        for t in tensors:
            self.pieces.append((at, t.data_ptr(), t.nbytes))
            at += t.nbytes

    def step(self, tokens):
        self.gradients(tokens)
        self.optimize()

    def plain(self, steps, tokens):
        began = now()
        for _ in range(steps):
            self.step(tokens)
        return now() - began

    def saving(self, steps, tokens):
        each, began = [], now()
        for _ in range(steps):
            self.in_hook = 0.0
            saved, took = self.keep()
            self.step(tokens)
            each.append(took + self.in_hook)
        took = now() - began
        settled(saved)
        return took, each

    def copying(self, steps, tokens):
        began = now()
        for _ in range(steps):
            self.aside.begin(self.pieces)
            self.step(tokens)
        return now() - began

    def steps(self, threads, steps, tokens):
        torch.set_num_threads(threads)
        self.step(tokens)
        return {"step": self.plain(steps, tokens) / steps}

    def block(self, threads, steps, tokens):
        torch.set_num_threads(threads)
        self.blocks += 1
        before = self.ck._record
        order = ["plain", "saving", "copying"]
        took = {}
        for n in range(3):
            kind = order[(self.blocks + n) % 3]
            self.step(tokens)
            took[kind] = getattr(self, kind)(steps, tokens)
        plain, (saving, each), beside = took["plain"], took["saving"], took["copying"]
        began = now()
        self.copiers.copy(self.pieces)
        copied = now() - began
        after = self.ck._record
        return {
            "stall": (saving - plain) / steps, "step": plain / steps, "each": each, "memcpy": copied, "beside": (beside - plain) / steps,
            "overlapped": after.overlapped - before.overlapped, "dropped": after.dropped - before.dropped,
        }  # fmt: skip


class Aside(Copiers):
    """One thread that copies, and can be waited for."""

    def __init__(self):
        super().__init__(threads=1)
        self.busy = False

    def begin(self, pieces):
        self.work.put(pieces)
        self.busy = True

    def wait(self):
        if self.busy:
            self.done.get()
            self.busy = False


serve(Training, ("block", "steps"))
