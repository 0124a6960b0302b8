# A script that trains and saves by holdfast. Comes behind worker.py, before steps.py and cuda.py, which share it.

import gc


class Trainer:
    """Measures how long the optimizer's hook waited since in_hook was set to 0."""

    def __init__(self, script):
        import holdfast

        self.script, self.at, self.in_hook = script, 0, 0.0
        self.ck = holdfast.attach()
        self.ck.track(model=script.model, optimizer=script.optimizer)
        watch = self.ck._overlap.watch
        before = watch._before

        def timed():
            began = now()
            before()
            self.in_hook += now() - began

        watch._before = timed

    def gradients(self, tokens):
        """Forward and backward."""
        embedding, *blocks = self.script.model
        x = embedding(torch.randint(0, embedding.num_embeddings, (1, tokens), device=embedding.weight.device))
        for b in blocks:
            x = x + b.proj(b.qkv(b.ln1(x))[..., : x.shape[-1]])
            x = x + b.down(torch.nn.functional.gelu(b.up(b.ln2(x))))
        x.square().mean().backward()

    def optimize(self):
        self.script.optimizer.step()
        self.script.optimizer.zero_grad(set_to_none=True)

    def keep(self, **options):
        """Saves the next step and reports how long that took."""
        self.at += 1
        began = now()
        while not (saved := self.ck.save(self.at, **options)):
            if saved.reason != "no free slot" or now() - began > 60:  # if the machine is too busy to seal in time, the wait counts
                raise SystemExit("save(%d): %r" % (self.at, saved))
        return saved, now() - began


def settled(saved):
    deadline = now() + 60
    while saved and not saved.sealed:
        if now() > deadline:
            raise SystemExit("%r is not sealed" % saved)
        time.sleep(0.001)


def serve(make, verbs):
    """Runs commands: each verb is a method, with numbers as its arguments."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with results

    def say(**fields):
        out.write(json.dumps(fields) + "\n")
        out.flush()

    it = make(Options(sys.argv[1:]))
    gc.collect()
    gc.freeze()  # a full garbage collection over PyTorch's objects takes 0.15 s and would hit a random save
    say(bytes=it.script.bytes())
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb not in verbs:
            break
        say(**getattr(it, verb)(*map(int, numbers)))
