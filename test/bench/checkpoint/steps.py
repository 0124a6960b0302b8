# Steps of training, beside which the agent works. Runs behind worker.py and training.py, in the same process.
#
#     … steps BYTES FOLDER DISK RANK WORLD
#
# Commands come one a line.
#
# save TOKENS: a step of forward, backward and AdamW, and a save until it is sealed.
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

    def step(self, tokens):
        self.gradients(tokens)
        self.optimize()

    def save(self, tokens):
        self.step(tokens)
        saved, took = self.keep()
        settled(saved)
        return {"stall": took}

    def steps(self, threads, steps, tokens):
        torch.set_num_threads(threads)
        self.step(tokens)
        began = now()
        for _ in range(steps):
            self.step(tokens)
        return {"step": (now() - began) / steps}


serve(Training, ("save", "steps"))
