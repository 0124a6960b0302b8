"""Tests what track() refuses or reports before the first save."""

import array
import collections
import contextlib
import io
import unittest

import holdfast

from .case import ClientCase, Holder
from .test_torch import torch


class Track(ClientCase):
    def tracked(self, value):
        """The output while value is tracked."""
        ck = self.attach(self.agent())
        self.addCleanup(self.release, ck)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                ck.track(s=value)
            finally:
                self.release(ck)
        return said.getvalue()

    def test_what_cannot_be_changed_in_place(self):
        only = type("Only", (), {"state_dict": lambda self: {}})()
        for value in (1, 1.5, "text", b"bytes", None, (1, 2), {1}, frozenset(), object(), print, only, collections.UserList()):
            with self.subTest(type(value).__name__), self.assertRaisesRegex(holdfast.TrackError, "s is a %s, which cannot be changed in place" % type(value).__name__):
                self.tracked(value)

    def test_what_can_be(self):
        ordered = collections.OrderedDict(a=(1, 2), b={3})
        for value in ({}, [], [(1, "x")], ordered, collections.Counter("ab"), bytearray(1), array.array("d", [1]), Holder(), {"h": [Holder()]}):
            with self.subTest(type(value).__name__):
                self.assertEqual(self.tracked(value), "")

    def test_an_object_where_restore_would_not_reach_it(self):
        for value, says in (
            ({"pair": (Holder(), 1)}, r"s\['pair'\]\[0\] is a Holder in a tuple, which restore replaces: use a dict or a list"),
            ([collections.defaultdict(int, a=Holder())], r"s\[0\]\['a'\] is a Holder in a defaultdict"),
        ):
            with self.assertRaisesRegex(holdfast.TrackError, says):
                self.tracked(value)

    def test_what_may_change_until_it_is_saved_is_said(self):
        agent = self.agent()
        ck = self.attach(agent)
        state = {"f": lambda: 0}
        loop = []
        loop.append(loop)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            ck.track(s=state)
            ck.track(loop=loop)
        lines = said.getvalue().splitlines()
        self.assertIn("no step is kept until this changes: s['f'] is a function and cannot be kept", lines[0])
        self.assertIn("loop: RecursionError", lines[1])
        del state["f"], loop[:]
        self.assertTrue(ck.save(1))

    def test_others_are_not_asked_for_their_state(self):
        asked = []
        loader = Holder()
        loader.state_dict = lambda: asked.append(1) or {}
        ck = self.attach(self.agent())
        ck.track(s={"loader": loader})
        self.assertEqual(asked, [])
        self.assertTrue(ck.save(1))
        self.assertEqual(asked, [1])

    def test_read_only_arrays(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("NUMPY IS MISSING: numpy arrays are not tested here")
        fixed = np.zeros(3)
        fixed.flags.writeable = False
        with self.assertRaisesRegex(holdfast.TrackError, "ndarray"):
            self.tracked(fixed)
        self.assertEqual(self.tracked({"replaced": fixed}), "")

    @unittest.skipIf(torch is None, "TORCH IS MISSING")
    def test_nothing_is_changed(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
        scaler = torch.amp.GradScaler("cpu")
        before = [p.data_ptr() for p in model.parameters()], [p._version for p in model.parameters()], torch.get_rng_state().tolist()
        self.assertEqual(self.tracked({"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}), "")
        after = [p.data_ptr() for p in model.parameters()], [p._version for p in model.parameters()], torch.get_rng_state().tolist()
        self.assertEqual(after, before)
        self.assertEqual(len(optimizer.state), 0)

    @unittest.skipIf(torch is None, "TORCH IS MISSING")
    def test_a_module_that_gets_its_memory_later(self):
        with torch.device("meta"):
            model = torch.nn.Linear(3, 2)
        agent = self.agent()
        ck = self.attach(agent)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            ck.track(model=model)
        self.assertIn("model['weight'] is a meta tensor", said.getvalue())
        model.to_empty(device="cpu")
        self.assertTrue(ck.save(1))


if __name__ == "__main__":
    unittest.main()
