"""Tests that torch.load reads each tensor of a slot in place."""

import io
import json
import math
import os
import unittest
import warnings

from .test_torch import torch

if torch is not None:
    from torch.distributed.checkpoint.utils import _create_file_view

    from holdfast import _prefix
    from holdfast._state import HEAD, Flat, Packer


def read(data, at, length):
    """Reads part of a file as torch.distributed.checkpoint does."""
    return torch.load(_create_file_view(io.BytesIO(data), at, length), map_location="cpu", weights_only=True)


def dtypes():
    """All dtypes of torch, except those whose own files this version cannot read with weights_only."""
    for name in dir(torch):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype) and str(dtype) == "torch." + name:
            file = io.BytesIO()
            try:
                torch.save(torch.empty(0, dtype=dtype), file)
                torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            except Exception:
                continue
            yield name, dtype


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Prefixes(unittest.TestCase):
    def setUp(self):
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        warnings.simplefilter("ignore")  # that a type is experimental

    def test_every_type_and_shape(self):
        seen = set()
        for name, dtype in dtypes():
            for shape in ((), (0, 4), (7,), (3, 5), (2, 1, 3), (1, 0)):
                with self.subTest(name, shape=shape):
                    raw = os.urandom(math.prod(shape) * dtype.itemsize)
                    if dtype == torch.bool:
                        raw = bytes(b & 1 for b in raw)
                    prefix = _prefix.of(name, shape, len(raw))
                    got = read(b"before" + prefix + raw + b"after", 6, len(prefix) + len(raw))
                    self.assertEqual((got.dtype, tuple(got.shape), got.is_contiguous()), (dtype, shape, True))
                    self.assertEqual(bytes(got.untyped_storage())[: len(raw)], raw)
            seen.add(name)
        self.assertLessEqual({"float32", "bfloat16", "bool", "complex64", "float8_e4m3fn"}, seen)

    def test_a_large_tensor_says_its_size(self):
        prefix = _prefix.of("float32", (1 << 33, 3), 3 << 35)
        self.assertTrue(prefix.endswith((3 << 33).to_bytes(8, "little")))

    def keep(self, packer, buffer, at, **state):
        flat = Flat()
        for name, value in state.items():
            flat.add(name, value)
        plan, needed = packer.plan(flat)
        packer.pack(memoryview(buffer), at, flat, plan)
        return flat, needed

    def check(self, buffer, at, flat):
        data = bytes(buffer[at:])
        _, lo, ln, *_ = HEAD.unpack_from(data)
        layout = json.loads(data[lo : lo + ln])
        self.assertEqual(len(layout["prefix"]), len(layout["tensors"]))
        read_, end = 0, 64
        for leaf, (kind, dtype, shape, offset, n, _), prefix in zip(flat.leaves, layout["tensors"], layout["prefix"]):
            self.assertEqual(offset % (4096 if n >= 65536 else 64), 0)
            self.assertGreaterEqual(offset - prefix, end)
            end = offset + n
            if kind != "torch":
                self.assertEqual(prefix, 0)
                continue
            got, want = read(data, offset - prefix, prefix + n), leaf.source.detach()
            self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
            self.assertTrue(torch.equal(got, want), dtype)
            read_ += 1
        return read_

    def test_tensors_of_a_state(self):
        whole = torch.arange(60.0).view(5, 12)
        state = {
            "zero": torch.tensor(3), "none": torch.empty(0, 3), "view": whole[1:3], "turned": whole.t(), "some": whole[:, ::2],
            "last": torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), "tied": [whole, whole],
            "param": torch.nn.Parameter(torch.randn(3)), "large": torch.randn(20000), "bytes": b"x" * 99, "n": 5, "none_again": torch.empty(2, 0, dtype=torch.int8),
        }  # fmt: skip
        buffer, packer = bytearray(1 << 20), Packer()
        flat, _ = self.keep(packer, buffer, 4096, state=state)
        self.assertEqual(self.check(buffer, 4096, flat), 10)

    def test_again_where_something_else_lay(self):
        buffer, packer, other = bytearray(1 << 18), Packer(), Packer()
        one, two = {"a": torch.ones(3), "b": torch.ones(4)}, {"x": b"y" * 3000, "b": torch.zeros(40)}
        for state in (one, two, one):
            flat, needed = self.keep(packer, buffer, 0, state=state)
            self.check(buffer, 0, flat)
        flat, _ = self.keep(other, buffer, 0, state=two)
        packer.overwritten(0)
        flat, _ = self.keep(packer, buffer, 0, state=one)
        self.check(buffer, 0, flat)

    def test_written_once(self):
        buffer, packer = bytearray(1 << 16), Packer()
        flat, _ = self.keep(packer, buffer, 0, state=torch.ones(3))
        at = packer._layout.offsets[0]
        buffer[at - 100 : at] = bytes(100)
        self.keep(packer, buffer, 0, state=torch.ones(3))
        self.assertEqual(buffer[at - 100 : at], bytes(100))


if __name__ == "__main__":
    unittest.main()
