"""Tests the client with torch and every kind of tensor that a training script has."""

import contextlib
import io
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    torch = None

from holdfast import RestoreError
from holdfast import _arena as A

from .case import ClientCase

if torch is None:
    print("TORCH IS MISSING: tensors, modules and optimizers are not tested here", file=sys.stderr)


def bits(t):
    """The bytes of a tensor, so that nan equals nan and -0 differs from 0."""
    t = t.detach().contiguous()
    return t.view(-1).view(torch.uint8).tolist() if t.numel() else []


class Through(ClientCase):
    def through(self, state, target=None, **options):
        """Saves state, starts a new generation, restores it into target."""
        agent = self.agent(**{"state_bytes": 1 << 20, **options})
        ck = self.attach(agent)
        ck.track(s=state)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertTrue(ck.save(1), said.getvalue())
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        target = {} if target is None else target
        ck.track(s=target)
        self.assertEqual(ck.restore(), 1)
        self.ck, self.fake = ck, agent
        return target

    def assert_same(self, got, want):
        self.assertEqual(got.dtype, want.dtype)
        self.assertEqual(got.shape, want.shape)
        self.assertEqual(bits(got), bits(want))


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Tensors(Through):
    def test_dtypes(self):
        names = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
                 "float8_e4m3fn", "float8_e5m2", "uint16", "uint32"]  # fmt: skip
        state = {}
        for name in names:
            dtype = getattr(torch, name, None)
            if dtype is not None:
                size = torch.empty((), dtype=dtype).element_size()
                raw = torch.randint(0, 2 if name == "bool" else 256, (6 * size,), dtype=torch.uint8)
                state[name] = raw.view(dtype).view(2, 3)
        self.assertGreater(len(state), 10)
        back = self.through(state)
        for name, t in state.items():
            with self.subTest(name):
                self.assert_same(back[name], t)

    def test_shapes(self):
        wide = torch.arange(24.0).reshape(2, 3, 4)
        state = {
            "zero dim": torch.tensor(7.0), "zero size": torch.empty(0, 5), "transposed": wide.permute(2, 0, 1),
            "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "step slice": torch.arange(10)[::3],
            "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 4), "narrow": wide[:, 1:2, ::2], "conj": torch.tensor([1 + 2j]).conj(),
            "grad": torch.randn(3, requires_grad=True), "big": torch.randn(200, 201), "one": torch.ones(1, 1, 1),
        }  # fmt: skip
        back = self.through(state)
        for name, t in state.items():
            with self.subTest(name):
                self.assert_same(back[name], t.resolve_conj())
                self.assertFalse(back[name].requires_grad)
        self.assertEqual(back["transposed"].stride(), state["transposed"].stride())
        self.assertTrue(back["channels last"].is_contiguous(memory_format=torch.channels_last))

    def test_large_tensors(self):
        """Tensors that several threads copy as bytes, and similar ones that are not."""
        n = 1 << 16  # 256 KiB of float32
        whole = torch.arange(3.0 * n)
        state = {
            "plain": whole[:n].clone(), "middle": whole[n : 2 * n], "transposed": torch.randn(256, 256).t(), "every other": whole[::2],
            "conj": torch.randn(n // 2, dtype=torch.complex64).conj(), "neg": torch.randn(n, dtype=torch.complex64).conj().imag,
        }  # fmt: skip
        self.assertTrue(state["conj"].is_conj() and state["neg"].is_neg())
        back = self.through(state, {"plain": torch.zeros(n)}, state_bytes=4 << 20)
        for name, t in state.items():
            with self.subTest(name):
                self.assert_same(back[name], t.resolve_conj().resolve_neg())
        self.fake.flip(0, 4096)  # a byte of the first large tensor
        self.assert_same(back["plain"], state["plain"])

    def test_modules_are_filled_by_threads_or_by_their_own_load(self):
        """Tied parameters, an uneven one, a strided one, a hook, a class with its own load, a buffer; none keeps a view of the arena."""

        class Own(torch.nn.Linear):
            def _load_from_state_dict(self, state, prefix, *args):
                state[prefix + "weight"] = state[prefix + "weight"] + 1
                super()._load_from_state_dict(state, prefix, *args)

        def make(kind, **options):
            m = torch.nn.Sequential(torch.nn.Linear(301, 259), kind(259, 301), torch.nn.Linear(301, 259))
            m[2].weight = m[0].weight
            m.register_buffer("table", torch.rand(7))
            return m

        hooked, loads = make(torch.nn.Linear), []
        hooked.register_load_state_dict_post_hook(lambda module, keys: loads.append(1))
        strided = make(torch.nn.Linear)
        strided[1].weight.data = torch.rand(259, 301).t()
        for name, saved, target, more in (
            ("plain", make(torch.nn.Linear), make(torch.nn.Linear), 0), ("hook", make(torch.nn.Linear), hooked, 0),
            ("strided", make(torch.nn.Linear), strided, 0), ("its own load", make(torch.nn.Linear), make(Own), 1),
        ):  # fmt: skip
            with self.subTest(name):
                folder = self.folder
                self.folder = tempfile.mkdtemp(dir=folder)
                self.addCleanup(setattr, self, "folder", folder)
                self.through(saved, target, state_bytes=4 << 20)
                for at in range(0, 1 << 20, 4096):
                    self.fake.flip(0, at)
                for (key, got), want in zip(target.state_dict().items(), saved.state_dict().values()):
                    self.assert_same(got, want + more if key == "1.weight" else want)
                self.assertIs(target[2].weight, target[0].weight)
                self.folder = folder
        self.assertEqual(loads, [1])

    def test_a_module_on_the_meta_device_is_refused(self):
        with self.quiet(), self.assertRaisesRegex(RestoreError, r"parameter 0.weight is on the meta device.*to_empty\(device=...\) on the module before restore"):
            self.through(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta")))

    def test_a_storage_that_was_let_go_of(self):
        gone = torch.zeros(1 << 17)
        gone.untyped_storage().resize_(0)
        ck = self.attach(self.agent(state_bytes=1 << 20))
        with self.quiet():
            ck.track(s={"gone": gone})
            self.assertFalse(ck.save(1))
        self.assertEqual(ck._record.refused, 1)

    def test_in_place(self):
        mine, view = torch.zeros(4), torch.zeros(2, 3).t()
        back = self.through({"a": torch.arange(4.0), "v": torch.arange(6.0).reshape(3, 2), "l": [torch.ones(2), 1]}, {"a": mine, "v": view, "l": [torch.zeros(2)]})
        self.assertIs(back["a"], mine)
        self.assertEqual(mine.tolist(), [0, 1, 2, 3])
        self.assertEqual(view.tolist(), [[0, 1], [2, 3], [4, 5]])
        self.assertEqual(back["l"][0].tolist(), [1, 1])

    def test_nothing_stays_in_the_arena(self):
        back = self.through({"a": torch.arange(4.0), "b": torch.ones(3)})
        slot, header = self.ck._arena.find(1)
        before = self.fake.data(slot, header.length)
        for t in back.values():
            t.fill_(9)
        self.assertEqual(self.fake.data(slot, header.length), before)

    def test_tied_weights_are_stored_once(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = torch.nn.Embedding(100, 64)
                self.head = torch.nn.Linear(64, 100, bias=False)
                self.head.weight = self.embed.weight

        model = Tied()
        want = bits(model.head.weight)
        fresh = Tied()
        self.through(model, fresh)
        self.assertEqual(bits(fresh.head.weight), want)
        self.assertIs(fresh.head.weight, fresh.embed.weight)
        _, header = self.ck._arena.find(1)
        self.assertLess(header.length, 2 * 100 * 64 * 4)

    def test_model_and_optimizers(self):
        def make(seed, kind):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3))
            if kind == "adamw":
                opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
            elif kind == "sgd":
                opt = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters()}], lr=0.01, momentum=0.9)
            else:
                opt = torch.optim.Adagrad(model.parameters())
            return model, opt, torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)

        def train(model, opt, sched, steps):
            losses = []
            for _ in range(steps):
                x = torch.randn(5, 1, 8, 8)
                opt.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                opt.step()
                sched.step()
                losses.append(loss.item().hex())
            return losses

        for kind in ("adamw", "sgd", "adagrad"):
            with self.subTest(kind):
                self.setUp()
                model, opt, sched = make(1, kind)
                agent = self.agent(state_bytes=1 << 20)
                ck = self.attach(agent)
                ck.track(model=model, optimizer=opt, scheduler=sched, rng=True)
                ck.restore()
                train(model, opt, sched, 3)
                self.assertTrue(ck.save(3))
                want = train(model, opt, sched, 4)
                agent.seal()
                agent = self.next_generation(ck, agent, 3)
                model, opt, sched = make(2, kind)
                ck = self.attach(agent)
                ck.track(model=model, optimizer=opt, scheduler=sched, rng=True)
                self.assertEqual(ck.restore(), 3)
                self.assertEqual(train(model, opt, sched, 4), want)
                self.release(ck)

    def test_one_changed_byte_is_seen_in_what_follows(self):
        state = {"w": torch.ones(4)}
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=state)
        self.assertTrue(ck.save(1))
        agent.seal()
        slot, header = ck._arena.find(1)
        agent.flip(slot, ck._packer._layout.offsets[0])  # the first byte of the first tensor
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        back = {}
        ck.track(s=back)
        ck.restore()
        self.assertNotEqual(bits(back["w"]), bits(state["w"]))

    def test_extra_state_is_not_borrowed(self):
        class WithExtra(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(2))
                self.extra = torch.full((3,), 5.0)

            def get_extra_state(self):
                return {"t": self.extra}

            def set_extra_state(self, state):
                self.extra = state["t"]

        fresh = WithExtra()
        self.through(WithExtra(), fresh)
        slot, header = self.ck._arena.find(1)
        before = self.fake.data(slot, header.length)
        fresh.extra.fill_(1)
        self.assertEqual(self.fake.data(slot, header.length), before)

    def test_what_cannot_be_kept_is_named(self):
        for name, t in {
            "sparse": torch.eye(3).to_sparse(),
            "meta": torch.empty(3, device="meta"),
            "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        }.items():
            with self.subTest(name):
                self.setUp()
                ck = self.attach(self.agent())
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    ck.track(s={"w": t})
                    self.assertIn("no step is kept until this changes: s['w'] is a", said.getvalue())
                    self.assertFalse(ck.save(1))
                self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())
                self.release(ck)

    def test_mutation_after_save_does_not_reach_the_copy(self):
        agent = self.agent()
        ck = self.attach(agent)
        w = torch.ones(1000)
        ck.track(s={"w": w})
        for step in range(1, 6):
            w.fill_(step)
            self.assertTrue(ck.save(step))
            w.fill_(-1)
            agent.seal()
        agent = self.next_generation(ck, agent, 5)
        ck = self.attach(agent)
        ck.track(s={"w": w})
        ck.restore()
        self.assertEqual(w.unique().tolist(), [5.0])
        self.assertEqual(A.SLOTS, 3)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Groups(ClientCase):
    """Optimizers whose groups are added during training."""

    def restored(self, grow, late=False):
        self.folder = tempfile.mkdtemp(dir=self.folder)
        agent = self.agent(state_bytes=1 << 20)
        ck = self.attach(agent)
        net = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        opt = torch.optim.AdamW(net[0].parameters())
        grow(opt, net)
        ck.track(opt=opt)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertTrue(ck.save(1), said.getvalue())
        agent.seal()
        ck = self.attach(self.next_generation(ck, agent, 1))
        opt = torch.optim.AdamW(net[0].parameters())
        ck.track(opt=opt)
        if ck.resume_step >= 1 and not late:
            grow(opt, net)
        ck.restore()
        return opt

    def test_a_group_that_is_missing(self):
        grow = lambda opt, net: opt.add_param_group({"params": list(net[1].parameters())})
        self.assertEqual(len(self.restored(grow).param_groups), 2)
        with self.assertRaisesRegex(RestoreError, "restoring step 1: opt has 1 parameter groups and was saved with 2; .*add_param_group.*resume_step"):
            self.restored(grow, late=True)

    def test_a_parameter_that_is_missing(self):
        grow = lambda opt, net: opt.param_groups[0]["params"].extend(net[1].parameters())
        self.assertEqual(len(self.restored(grow).param_groups[0]["params"]), 4)
        with self.assertRaisesRegex(RestoreError, "opt has 2 parameters in group 0 and was saved with 4; .*resume_step"):
            self.restored(grow, late=True)

    def test_what_an_object_refuses_is_said_with_its_name(self):
        agent = self.agent(state_bytes=1 << 20)
        ck = self.attach(agent)
        ck.track(net=torch.nn.Linear(2, 2))
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertTrue(ck.save(1))
        agent.seal()
        ck = self.attach(self.next_generation(ck, agent, 1))
        ck.track(net=torch.nn.Linear(3, 2))
        with self.assertRaisesRegex(RestoreError, r"(?s)restoring step 1: net rejected it: RuntimeError: .*size mismatch"):
            ck.restore()


if __name__ == "__main__":
    unittest.main()
