"""Tests with real torch what counts as an optimizer step."""

import contextlib
import copy
import io
import pickle
import subprocess
import sys
import time
import types
import unittest

import _holdfast_steps as steps

from .case import ROOT, environment

try:
    import torch
except ImportError:
    torch = None


class Page:
    """What a page would hold."""

    def __init__(self):
        self.count, self.resume = 0, None

    def steps(self, count):
        self.count = max(self.count, count)

    def resumed(self, step):
        self.resume = step


@unittest.skipIf(torch is None, "needs torch")
class Counted(unittest.TestCase):
    def setUp(self):
        optimizer = sys.modules["torch.optim.optimizer"]
        before = dict(optimizer._global_optimizer_post_hooks)
        self.counter = self.process()
        self.addCleanup(optimizer._global_optimizer_post_hooks.update, before)
        self.addCleanup(optimizer._global_optimizer_post_hooks.clear)

    def process(self, first=True):
        """Counts from here on, as in a new process."""
        optimizer = sys.modules["torch.optim.optimizer"]
        optimizer._global_optimizer_post_hooks.clear()
        self.page = Page()
        counter = steps.Counter(self.page, first)
        counter.watch_optimizers(optimizer)
        return counter

    def model(self):
        return torch.nn.Linear(3, 3)

    def backward(self, model, value=1.0):
        model(torch.full((2, 3), value)).sum().backward()

    def test_accumulation(self):
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters())
        for micro in range(1, 41):
            self.backward(model)
            if micro % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        self.assertEqual((self.page.count, self.page.resume), (10, 0))

    def test_two_optimizers(self):
        """The optimizer with the most steps counts, and its restored step."""
        a, b = self.model(), self.model()
        first, second = torch.optim.Adam(a.parameters()), torch.optim.Adam(b.parameters())
        for _ in range(5):
            for optimizer, model, times in ((first, a, 1), (second, b, 3)):
                for _ in range(times):
                    self.backward(model)
                    optimizer.step()
        self.assertEqual((self.page.count, self.page.resume), (15, 0))
        self.process(first=False)
        for _ in range(5):
            for optimizer, times in ((first, 1), (second, 3)):
                for _ in range(times):
                    optimizer.step()
        self.assertEqual((self.page.count, self.page.resume), (15, 15))

    def test_a_scheduler_changes_nothing(self):
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1)
        for _ in range(3):
            self.backward(model)
            optimizer.step()
            scheduler.step()
        self.assertEqual((self.page.count, self.page.resume), (3, None), "SGD keeps no count of its own")

    def test_a_scaler_that_skips(self):
        for fused in (False, True):
            with self.subTest(fused=fused):
                self.process()
                model = self.model()
                optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
                scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
                for value in (1.0, float("inf"), 1.0, float("nan"), 1.0):
                    loss = model(torch.full((2, 3), value)).sum()
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                self.assertEqual(self.page.count, 3)
                self.assertEqual(max(s["step"].item() for s in optimizer.state.values()), 3)

    def test_a_scaler_on_a_device_is_not_waited_for(self):
        model = self.model()
        optimizer = torch.optim.Adam(model.parameters())

        class OnDevice:
            device = torch.device("meta")

            def item(self):
                raise AssertionError("read")

        for found in (OnDevice(), 0.0):
            optimizer.found_inf = found
            self.counter.optimizer_stepped(optimizer, {})
        self.counter.optimizer_stepped(torch.optim.Adam(model.parameters()), {"grad_scaler": None})
        self.assertEqual(self.page.count, 0)

    def test_optimizer_in_backward(self):
        model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(5)])
        of = {p: torch.optim.Adam([p]) for p in model.parameters()}

        def step(p):
            of[p].step()
            of[p].zero_grad()

        for p in of:
            p.register_post_accumulate_grad_hook(step)
        for _ in range(7):
            self.backward(model)
        self.assertEqual((self.page.count, self.page.resume), (7, 0))

    def test_zero_redundancy(self):
        import torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        model = self.model()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
        for _ in range(4):
            self.backward(model)
            optimizer.step()
        self.assertEqual((self.page.count, self.page.resume), (4, 0))

    def test_lbfgs_with_a_closure(self):
        model = self.model()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 3)) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        self.assertEqual(self.page.count, 3)
        self.assertGreater(len(calls), 3)

    def test_a_subclass_that_calls_super(self):
        """Both steps are wrapped by torch if an object of the base class was made as well."""

        class Mine(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        class MineAgain(Mine):
            @torch.no_grad()
            def step(self, closure=None):
                return [super(MineAgain, self).step(closure)][0]

        model = self.model()
        torch.optim.SGD(model.parameters(), lr=0.1)
        Mine(model.parameters(), lr=0.1)
        self.assertTrue(torch.optim.SGD.step.hooked and Mine.step.hooked)
        for kind in (Mine, MineAgain, torch.optim.AdamW):
            self.process()
            optimizer = kind(model.parameters(), lr=0.1)
            for _ in range(6):
                self.backward(model)
                optimizer.step()
            self.assertEqual(self.page.count, 6, kind)

    def test_one_that_drives_another(self):
        class Outer(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner

            def step(self, closure=None):
                return self.inner.step(closure)

        model = self.model()
        optimizer = Outer(torch.optim.Adam(model.parameters()))
        for _ in range(3):
            self.backward(model)
            optimizer.step()
        self.assertEqual((self.page.count, self.page.resume), (3, 0))

    def test_a_step_that_raises_is_none(self):
        class Broken(torch.optim.SGD):
            def step(self, closure=None):
                raise ValueError("theirs")

        with self.assertRaisesRegex(ValueError, "theirs"):
            Broken(self.model().parameters(), lr=0.1).step()
        self.assertEqual(self.page.count, 0)

    def test_optimizers_that_are_gone(self):
        """Other objects reuse their ids."""
        for _ in range(50):
            model = self.model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.backward(model)
            optimizer.step()
            optimizer.step()
            del optimizer
        self.assertEqual(self.page.count, 2)
        self.assertEqual(len(self.counter.met), 0)

    def test_a_fault_of_ours_is_not_the_scripts(self):
        self.counter.met = None
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.quiet():
            optimizer.step()
            optimizer.step()
        self.assertEqual(self.said.getvalue().count("holdfast: counting optimizer steps"), 1)

    def test_a_closed_stderr(self):
        self.counter.met = None
        optimizer = torch.optim.SGD(self.model().parameters(), lr=0.1)
        with self.quiet():
            self.said.close()
            optimizer.step()

    def test_torch_without_a_word_on_compilers(self):
        """Up to 2.2 there is no torch.compiler.is_compiling: nothing is counted, and nothing raises."""
        self.addCleanup(setattr, steps, "torch", torch)
        for older in ("2.0.1+cu118", "2.2.2"):
            sys.modules["torch"] = types.SimpleNamespace(device=torch.device, __version__=older)
            try:
                self.process()
            finally:
                sys.modules["torch"] = torch
            optimizer = torch.optim.SGD(self.model().parameters(), lr=0.1)
            with self.quiet():
                optimizer.step()
            self.assertEqual((self.page.count, self.said.getvalue()), (0, ""))

    def quiet(self):
        self.said = io.StringIO()
        return contextlib.redirect_stderr(self.said)

    def test_an_optimizer_is_as_without_us(self):
        model = self.model()
        optimizer = torch.optim.Adam(model.parameters())
        keys = set(vars(optimizer))
        self.backward(model)
        optimizer.step()
        self.assertEqual(set(vars(optimizer)), keys)
        pickle.loads(pickle.dumps(optimizer))
        copy.deepcopy(optimizer)

    def resumed(self, first, change=None, kind="Adam", again=3):
        """The reports of a run that resumes at step 5, with the state changed before."""
        model = self.model()
        optimizer = getattr(torch.optim, kind)(model.parameters())
        for _ in range(5):
            self.backward(model)
            optimizer.step()
        state = optimizer.state_dict()
        self.process(first)
        optimizer = getattr(torch.optim, kind)(model.parameters())
        if change is not None:
            state = change(state)
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range(again):
            self.backward(model)
            optimizer.step()
        self.assertEqual(self.page.count, again)
        return self.page.resume

    def test_where_a_run_goes_on(self):
        def frozen(state):  # a part that was trained before and is frozen now
            state["state"][0]["step"] = torch.tensor(90.0)
            state["state"][99] = {"step": torch.tensor(100.0)}
            return state

        self.assertEqual(self.resumed(True), 5)
        self.assertEqual(self.resumed(False), 5)
        for kind in ("AdamW", "NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "RMSprop"):
            self.assertEqual(self.resumed(False, kind=kind), 5, kind)
        self.assertEqual(self.resumed(True, lambda _: None), 0)
        self.assertIsNone(self.resumed(False, lambda _: None), "the weights may have been restored without the optimizer")
        self.assertIsNone(self.resumed(False, again=1), "not sure yet")

    def test_a_count_that_is_none(self):
        """State in which `step` means something else."""

        class Odd(torch.optim.SGD):
            rise = 2

            def step(self, closure=None):
                super().step(closure)
                for group in self.param_groups:
                    for p in group["params"]:
                        self.state[p]["step"] = self.state[p].get("step", 5) + self.rise

        for rise in (2, 0, 0.5):
            self.process()
            Odd.rise = rise
            model = self.model()
            optimizer = Odd(model.parameters(), lr=0.1)
            for _ in range(4):
                self.backward(model)
                optimizer.step()
            self.assertEqual((self.page.count, self.page.resume), (4, None), rise)

    def engine_module(self):
        """Like DeepSpeed's: inner optimizers step many times per engine step, and not at all for a skipped one."""
        test = self

        class DeepSpeedEngine:
            def __init__(self, at):
                self.global_steps, self.model = at, test.model()
                self.optimizer = torch.optim.Adam(self.model.parameters())

            def step(self, boundary=True):
                if boundary:
                    self._take_model_step({})

            def _take_model_step(self, lr_kwargs, block_eigenvalue=None):
                test.backward(self.model)
                for _ in range(3):
                    self.optimizer.step()
                self.global_steps += 1

        return types.SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine)

    def test_deepspeed(self):
        for at, first, want in ((0, True, 0), (700, False, 700), (0, False, None)):
            self.process(first)
            module = self.engine_module()
            steps._counter.watch_engines(module)
            engine = module.DeepSpeedEngine(at)
            for micro in range(8):
                engine.step(boundary=micro % 2 == 1)
                if micro == 5:
                    engine.global_steps = 100  # a checkpoint that the script loads during training
            other = module.DeepSpeedEngine(7)
            other.step()
            self.assertEqual((self.page.count, self.page.resume), (4, want))

    def test_what_it_costs(self):
        """A call, and 300 optimizers in backward."""
        model = torch.nn.Sequential(*[torch.nn.Linear(3, 3, bias=False) for _ in range(300)])
        optimizers = [torch.optim.AdamW(m.parameters()) for m in model]
        self.backward(model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.step()

        def took(f, times):
            best = float("inf")
            for _ in range(times):
                begin = time.perf_counter()
                for optimizer in optimizers:
                    f(optimizer)
                best = min(best, time.perf_counter() - begin)
            return best / len(optimizers) * 1e6

        call = took(lambda o: steps.stepped(o, (), {}), 20)
        print("a call of the hook takes %.2f us" % call, file=sys.stderr)
        self.assertLess(call, 25)


SCRIPT = """
import re, sys
sys.path.insert(0, %r)
import torch, torch._dynamo as dynamo
if sys.argv[1] == "with":
    import _holdfast_steps as steps
    import _holdfast_page, tempfile
    with tempfile.NamedTemporaryFile() as f:
        f.truncate(1 << 20)
        page = _holdfast_page.enter(f.name)
    steps.Counter(page, True).watch_optimizers(sys.modules["torch.optim.optimizer"])
for kind in ("SGD", "Adam", "LBFGS"):
    for whole in (False, True):
        dynamo.reset()
        dynamo.utils.counters.clear()
        model = torch.nn.Linear(3, 3)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        other = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        def step(optimizer):
            optimizer.step() if kind != "LBFGS" else optimizer.step(lambda: model(torch.ones(2, 3)).sum())
        compiled = torch.compile(step, backend="eager", fullgraph=whole)
        said = "ok"
        try:
            for turn in range(4):
                model(torch.ones(2, 3)).sum().backward()
                compiled(optimizer)
                if turn == 2:
                    compiled(other)
        except Exception as e:
            said = type(e).__name__ + " " + str(e).split(chr(10))[0]
        counters = {k: dict(v) for k, v in sorted(dynamo.utils.counters.items()) if k in ("stats", "graph_break", "unimplemented", "recompiles", "frames", "ok")}
        print(kind, whole, re.sub("0x[0-9a-f]+", "", said + repr(counters)), flush=True)
"""


@unittest.skipIf(torch is None, "needs torch")
class Compiled(unittest.TestCase):
    def test_a_compiled_step_is_as_without_us(self):
        """The same errors, graphs, graph breaks and recompilations, and nothing is counted."""
        env = environment(TORCH_LOGS="recompiles")
        runs = [
            subprocess.Popen([sys.executable, "-c", SCRIPT % str(ROOT), how], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for how in ("without", "with")
        ]
        plain, ours = (run.communicate() + (run.returncode,) for run in runs)
        self.assertEqual((plain[0], plain[2]), (ours[0], ours[2]))
        self.assertEqual(plain[0].count("\n"), 6, plain[0] + plain[1])
        self.assertNotIn("holdfast:", ours[1])
        self.assertEqual(*(said.count("Recompiling function") for _, said, _ in (plain, ours)))


if __name__ == "__main__":
    unittest.main()
