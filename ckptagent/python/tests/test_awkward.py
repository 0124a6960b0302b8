"""Tests unusual tensors, which are kept bit for bit or refused by name, and states whose form changes while a job runs."""

import contextlib
import io
import unittest

import holdfast

from .test_torch import Through, bits, torch


def raw(dtype, n):
    """Random bits, as n elements of a dtype."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(0, 256, (n * size,), dtype=torch.uint8).view(dtype)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Awkward(Through):
    def test_dtypes_that_few_use(self):
        """PyTorch copies small ones, large ones are copied as bytes; into an existing tensor, and as a new one."""
        names = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bfloat16", "complex32",
                 "complex64", "complex128", "uint16", "uint32", "uint64", "bits8"]  # fmt: skip
        there = [d for d in (getattr(torch, n, None) for n in names) if d is not None]
        self.assertGreaterEqual(len(there), 9)
        state = {}
        for dtype in there:
            state["%s small" % dtype], state["%s large" % dtype] = raw(dtype, 6).view(2, 3), raw(dtype, 1 << 17)
            state["%s transposed" % dtype], state["%s one" % dtype] = raw(dtype, 6).view(2, 3).t(), raw(dtype, 1).view(())
        for target in ({}, {k: torch.zeros(t.numel() * t.element_size(), dtype=torch.uint8).view(t.dtype).view(t.shape) for k, t in state.items()}):
            self.setUp()
            held = dict(target)
            back = self.through(state, target, state_bytes=64 << 20)
            for name, t in state.items():
                with self.subTest(name, into="a tensor" if held else "nothing"):
                    self.assert_same(back[name], t)
                    self.assertIs(back[name], held.get(name, back[name]))

    def refused(self, value, says):
        """The reason is printed when it is tracked, by name, and in one line with each save that is not kept."""
        self.setUp()
        ck = self.attach(self.agent(state_bytes=1 << 20))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            ck.track(s={"w": value, "fine": bytearray(1)})
            self.assertRegex(said.getvalue(), says)
            saved = ck.save(1)
        self.assertFalse(saved)
        self.assertRegex(saved.reason, says)
        self.assertNotIn("Traceback", saved.reason)
        self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())
        self.release(ck)

    def test_what_is_refused_by_name(self):
        class Elsewhere(torch.Tensor):
            @staticmethod
            def __new__(cls, data):
                return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

            def __init__(self, data):
                self.data_of_its_own = data

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                raise NotImplementedError(func)

        with torch._subclasses.FakeTensorMode():
            fake = torch.ones(3)
        for says, value in [
            (r"s\['w'\] is a torch.sparse_coo tensor", torch.eye(3).to_sparse()),
            (r"s\['w'\] is a torch.sparse_csr tensor", torch.eye(3).to_sparse_csr()),
            (r"s\['w'\] is a nested tensor", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
            (r"s\['w'\] is a NestedTensor", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
            (r"s\['w'\] is a meta tensor", torch.empty(3, device="meta")),
            (r"s\['w'\] is a quantised tensor", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
            (r"s\['w'\] is a Elsewhere; only plain tensors", Elsewhere(torch.ones(3))),
            (r"s\['w'\] is a FakeTensor; only plain tensors", fake),
            (r"s\['w'\] is a UninitializedParameter, which has no data yet", torch.nn.LazyLinear(3).weight),
        ]:
            with self.subTest(says):
                self.refused(value, says)

    def test_dtypes_that_have_but_a_name(self):
        """Large ones can be copied as bytes, but torch can do nothing with them after a restore."""
        for name in ("int4", "uint4", "uint1"):
            dtype = getattr(torch, name, None)
            if dtype is None:
                self.skipTest("TORCH IS TOO OLD: it has no %s" % name)
            for n in (8, 1 << 18):
                with self.subTest(name, n=n):
                    self.refused(torch.zeros(n, dtype=torch.uint8).view(dtype), r"s\['w'\] is a tensor of torch.%s, which this PyTorch cannot copy" % name)

    def test_a_lazy_module_is_kept_once_it_has_run(self):
        model = torch.nn.LazyLinear(3)
        ck = self.attach(self.agent())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            ck.track(model=model)
        self.assertIn("model['weight'] is a UninitializedParameter", said.getvalue())
        model(torch.ones(1, 2))
        self.assertTrue(ck.save(1))

    def test_one_that_is_tracked_by_itself(self):
        for says, value in [
            ("w is a nested tensor", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
            ("w is a UninitializedParameter", torch.nn.LazyLinear(3).weight),
            ("w is a torch.sparse_coo tensor", torch.eye(3).to_sparse()),
        ]:
            self.setUp()
            ck = self.attach(self.agent())
            with self.subTest(says), contextlib.redirect_stderr(io.StringIO()) as said:
                ck.track(w=value)
            self.assertIn(says, said.getvalue())
            self.release(ck)

    def test_views_of_one_storage(self):
        """Each is kept whole; after a restore in place they are still views of one storage."""
        base, mine = torch.arange(10.0), torch.zeros(10)
        back = self.through({"a": base[:6], "b": base[4:], "c": base}, {"a": mine[:6], "b": mine[4:], "c": mine})
        self.assertEqual(mine.tolist(), base.tolist())
        back["a"][5] = -1
        self.assertEqual((mine[5].item(), back["b"][1].item(), back["c"][5].item()), (-1, -1, -1))

    def test_a_tensor_and_an_array_of_one_memory(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("NUMPY IS MISSING: memory that it shares is not tested here")
        theirs, mine = np.arange(4.0), np.zeros(4)
        self.through({"t": torch.from_numpy(theirs), "a": theirs}, {"t": torch.from_numpy(mine), "a": mine})
        self.assertEqual(mine.tolist(), theirs.tolist())

    def test_overlapping_strides(self):
        window = torch.as_strided(torch.arange(6.0), (4, 3), (1, 1))
        back = self.through({"t": window}, {"t": torch.as_strided(torch.zeros(6), (4, 3), (1, 1))})
        self.assertEqual(back["t"].tolist(), window.tolist())

    def test_what_cannot_be_changed_in_place(self):
        """In a dict the restored value replaces it; tracked by itself it is refused by track, not only by restore."""
        with torch.inference_mode():
            inference = torch.zeros(2, 4)
        for name, t in (("expanded", torch.zeros(2, 1).expand(2, 4)), ("inference", inference)):
            with self.subTest(name):
                self.setUp()
                back = self.through({"t": torch.arange(8.0).view(2, 4)}, {"t": t})
                self.assertEqual(back["t"].tolist(), [[0, 1, 2, 3], [4, 5, 6, 7]])
                self.assertIsNot(back["t"], t)
                with self.assertRaisesRegex(holdfast.TrackError, "t is a Tensor, which cannot be changed in place: track a dict"):
                    self.ck.track(t=t)

    def test_subclasses_that_are_plain(self):
        class Mine(torch.Tensor):
            pass

        back = self.through({"a": torch.ones(3).as_subclass(Mine)}, {"a": torch.zeros(3).as_subclass(Mine)})
        self.assertIs(type(back["a"]), Mine)
        self.assertEqual(bits(back["a"].as_subclass(torch.Tensor)), bits(torch.ones(3)))

    def test_nothing_at_all(self):
        state = {"empty": torch.empty(0), "between": torch.empty(3, 0, 2), "bf16": torch.empty(0, dtype=torch.bfloat16), "zero": torch.zeros((), dtype=torch.bfloat16)}
        back = self.through(state, {k: torch.empty_like(t) for k, t in state.items()})
        for name, t in state.items():
            self.assert_same(back[name], t)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Changing(Through):
    """The form of the state changes while the job runs: each save has the state of its time."""

    def test_each_form_is_restored(self):
        wide = torch.arange(12.0).view(3, 4)
        tied = torch.full((3,), 7.0)
        forms = [
            {"w": torch.ones(4), "b": torch.zeros(4)},
            {"w": torch.ones(4), "b": torch.zeros(4), "added": torch.full((5,), 3.0)},
            {"b": torch.zeros(4), "w": torch.full((4,), 2.0)},  # one part is gone, and the order changed
            {"b": torch.full((4,), 5.0), "w": torch.zeros(4)},  # the same form, other values
            {"w": torch.ones(4, dtype=torch.bfloat16), "b": torch.ones(4, dtype=torch.int64)},
            {"w": wide, "b": wide.t()},
            {"w": wide.t(), "b": wide},
            {"w": tied, "b": tied},
            {"w": tied, "b": tied.clone()},
            {"w": torch.ones(1 << 16), "b": torch.ones(())},
            {"w": torch.empty(0), "b": torch.ones(1)},
            {"w": 1.5, "b": [torch.ones(2), "text"]},
        ]
        for upto in range(1, len(forms) + 1):
            with self.subTest(forms=upto):
                self.setUp()
                agent, state = self.agent(state_bytes=1 << 20), {}
                ck = self.attach(agent)
                ck.track(s=state)
                for step, form in enumerate(forms[:upto], 1):
                    state.clear()
                    state.update(form)
                    self.assertTrue(ck.save(step))
                    agent.seal()
                agent = self.next_generation(ck, agent, upto)
                ck, back = self.attach(agent), {}
                ck.track(s=back)
                self.assertEqual(ck.restore(), upto)
                self.assertEqual(list(back), list(forms[upto - 1]))
                for name, want in forms[upto - 1].items():
                    if isinstance(want, torch.Tensor):
                        self.assert_same(back[name], want)
                    else:
                        self.assertEqual(repr(back[name]), repr(want))
                if upto == 8:
                    self.assertIs(back["w"], back["b"])
                elif upto == 9:
                    self.assertIsNot(back["w"], back["b"])
                self.release(ck)

    def test_a_state_that_grows_too_large_and_shrinks_again(self):
        """Saves are refused and counted while the state is too large; the step before remains, and the next that fits is kept."""
        agent, state = self.agent(state_bytes=1 << 18), {"w": torch.ones(1000)}
        ck = self.attach(agent)
        ck.track(s=state)
        self.assertTrue(ck.save(1))
        agent.seal()
        state["w"] = torch.ones(1 << 17)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            for step in (2, 3):
                saved = ck.save(step)
                self.assertFalse(saved)
                self.assertRegex(saved.reason, "state needs [0-9]+ bytes, the slot has 262144")
        self.assertEqual(said.getvalue().count("holdfast.dev/state-size to 1Mi"), 1, said.getvalue())
        self.assertEqual((ck._record.refused, ck._record.needed > 1 << 19, agent.seal()), (2, True, None))
        self.assertEqual(ck._arena.sealed_steps(), [1])
        state["w"] = torch.full((2000,), 4.0)
        self.assertTrue(ck.save(4))
        self.assertEqual(agent.seal(), 4)
        agent = self.next_generation(ck, agent, 4)
        ck, back = self.attach(agent), {}
        ck.track(s=back)
        ck.restore()
        self.assert_same(back["w"], state["w"])

    def test_a_part_that_cannot_be_kept_for_a_while(self):
        agent, state = self.agent(), {"w": torch.ones(4)}
        ck = self.attach(agent)
        ck.track(s=state)
        self.assertTrue(ck.save(1))
        agent.seal()
        state["w"] = torch.ones(4).to_sparse()
        with self.quiet():
            self.assertFalse(ck.save(2))
        state["w"] = torch.full((4,), 3.0)
        self.assertTrue(ck.save(3))
        self.assertEqual((agent.seal(), ck._record.refused), (3, 1))

    def test_a_model_that_has_changed_since_is_refused_as_torch_does(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(model=torch.nn.Linear(3, 2))
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        for name, model, says in (
            ("another shape", torch.nn.Linear(3, 4), "size mismatch for weight"),
            ("one more", torch.nn.Sequential(torch.nn.Linear(3, 2)), "Missing key"),
            ("one less", torch.nn.Linear(3, 2, bias=False), "Unexpected key"),
        ):
            with self.subTest(name):
                ck = self.attach(agent)
                ck.track(model=model)
                with self.assertRaisesRegex(RuntimeError, says):
                    ck.restore()
                self.release(ck)


if __name__ == "__main__":
    unittest.main()
