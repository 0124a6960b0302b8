"""Stock torch reads a step in storage in place, from an index that a Python without torch wrote."""

import json
import os
import pickletools
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from holdfast import _index

from . import inplace_states, storage
from .case import ROOT
from .test_export import script
from .test_torch import torch

PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast._index import main; main()"  # as ckptagent/python.IndexArgs


MEMORY = 512 << 20


def bound():
    """As the agent mounts it."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def index(job, ranks, step=2):
    """Output of the agent's index process for a step of generation 1: standard output and error."""
    files = os.path.join(job, "gen-1", "step-%d.rank-" % step)
    made = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT), files, str(ranks)], capture_output=True, preexec_fn=bound)
    return (made.stdout, "") if made.returncode == 0 else (b"", made.stderr.decode())


def place(job, said, step=2):
    """Writes the index where the agent does, and returns the folder."""
    folder = os.path.join(job, "gen-1", "step-%d.dcp" % step)
    os.mkdir(folder)
    n, _, rest = said.partition(b"\n")
    for name, part in (("values", rest[: int(n)]), (".metadata", rest[int(n) :])):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(part)
    return folder


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def put(self, name, states):
        job = os.path.join(self.folder, name)
        storage.put(job, 1, 2, states)
        return job


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Real(Case):
    """States saved by real ranks with torch; a process that cannot import holdfast loads each in place."""

    def made(self, name):
        states = os.path.join(self.folder, "states", name)
        data = getattr(inplace_states, name)(states)
        job = self.put(name, data)
        said, why = index(job, len(data))
        self.assertEqual(why, "")
        return states, job, place(job, said)

    def check(self, name, says):
        from holdfast import export

        states, job, folder = self.made(name)
        report = export.export(job, job + "-exported")
        report = json.dumps({"differ": report.differ, "left": report.left})
        self.assertRegex(script("inplace_check.py", folder, job + "-exported", report), says)
        return states, folder

    def test_trained(self):
        """Also on four ranks with another sharding, and again on two. running_mean and _var of DDP differ and are not listed."""
        states, folder = self.check("trained", r"^\d\d\d names are equal, of \d+ tensors in \d\d\d parts; 8 differ between ranks and are not listed")
        said = script("export_stock.py", folder, os.path.join(states, "whole.pt"), os.path.join(self.folder, "again"))
        self.assertRegex(said, r"each rank's own values are there\n\d+ tensors are equal on 4 ranks\n\d+ tensors are equal on 2 ranks")

    def test_planned(self):
        self.check("planned", r"^57 names are equal, of 32 tensors in 53 parts; 0 differ")

    def test_kinds(self):
        self.check("kinds", r"^104 names are equal, of 37 tensors in 37 parts; 0 differ")

    def test_opaque(self):
        self.check("opaque", r"^1 names are equal, of 1 tensors in 1 parts; 0 differ")


def state(tree, rows=(), prefix=None, objects=b""):
    """A rank's data: rows lie 512 bytes apart."""
    rows = [[kind, dtype, shape, 512 * (i + 1), n, last] for i, (kind, dtype, shape, n, last) in enumerate(rows)]
    layout = json.dumps({"v": 1, "tensors": rows, "prefix": [300 * (r[0] in ("torch", "dtensor")) for r in rows] if prefix is None else prefix}).encode()
    tree = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    at = 4096
    head = struct.pack("<8s6Q", b"HFSTATE1", at, len(layout), at + len(layout), len(tree), at + len(layout) + len(tree), len(objects))
    return head.ljust(at, b"\x07") + layout + tree + objects


WHOLE = ("torch", "float32", [2, 3], 24, None)


def shard(rank, placements=(["shard", 0],), rows=2, shape=(4, 2)):
    part = {"strides": None, "shape": shape, "stride": [2, 1], "mesh": [2], "dims": None, "at": [rank], "placements": placements}
    return ("dtensor", "float32", [rows, 2], 8 * rows, part)


def zero_of(count):
    """The saved state of a ZeroRedundancyOptimizer that claims a number of parameters."""
    group = {"d": [["params", {"l": [0]}]]}
    optim = {"d": [["state", {"d": []}], ["param_groups", {"l": [group]}]]}
    return {"d": [["optim", optim], ["groups", {"l": [{"d": []}]}], ["part", {"l": []}], ["of", {"l": [{"l": [count, {"l": [0]}]}]}]]}


class Made(Case):
    """Untrusted content of a rank's state. No torch is needed."""

    def names(self, *states):
        job = self.put("job-uid-%d" % len(os.listdir(self.folder)), states)
        said, why = index(job, len(states))
        self.assertEqual(why, "")
        return said

    def why(self, *states):
        said, why = index(self.put("job-uid-%d" % len(os.listdir(self.folder)), states), len(states))
        self.assertEqual(said, b"")
        return why

    def test_nothing_but_these_is_called(self):
        """No text in a state becomes the name of an imported module; no memory outside of the state is read."""
        of = {"m": {"d": [["w", {"T": 0}], ["s", {"T": 1}], ["posix\nsystem", "x"]]}, "p": {"p": 0}, "a": {"t": [{"T": 0}, {"T": 2}]}}
        blob = b"cposix\nsystem\n"
        rows = [WHOLE, shard(0), ("numpy", "<i2", [2], 4, None)]
        said = self.names(*(state(of, rows[:1] + [shard(r)] + rows[2:], objects=struct.pack("<Q", len(blob)) + blob) for r in (0, 1)))
        n, _, rest = said.partition(b"\n")
        metadata = rest[int(n) :]
        called = {arg for op, arg, _ in pickletools.genops(metadata) if op.name in ("GLOBAL", "STACK_GLOBAL", "INST")}
        prefix = "torch.distributed.checkpoint.metadata "
        named = ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "TensorProperties", "_MEM_FORMAT_ENCODING")
        want = {prefix + x for x in named} | {"torch Size", "torch float32", "torch.serialization _get_layout", "torch.distributed.checkpoint.filesystem _StorageInfo"}
        self.assertEqual(called, want)
        values, at, called = rest[: int(n)], 0, set()
        while at < len(values):
            for op, arg, pos in pickletools.genops(values[at:]):
                if op.name == "GLOBAL":
                    called.add(arg)
            at += pos + 1
        self.assertEqual(called, {"_pickle loads", "torch load", "_io BytesIO", "numpy ndarray", "builtins bytearray"})

    def test_what_cannot_be_named(self):
        """Each fails with its reason, without a traceback."""
        two = lambda *rows: [state({"w": {"T": 0}}, [r]) for r in rows]  # noqa: E731
        for says, states in {
            "no state: magic": [b"x" * 5000],
            "points past its end": [state({}, [WHOLE])[:4100]],
            "JSONDecodeError": [state(b'{"a":')],
            "tree tag 'x' is unknown": [state({"a": {"x": 1}})],
            "tensor 0, qint8 of 2 bytes": [state({"w": {"T": 0}}, [("torch", "qint8", [2], 2, None)])],
            "float32\nposix of 0 bytes": [state({"w": {"T": 0}}, [("torch", "float32\nposix", [0], 0, None)])],
            "tensor 0, float32 of 9000 bytes": [state({"w": {"T": 0}}, [("torch", "float32", [2250], 9000, None)])],
            "tensor 0, float32 of 24 bytes at 512": [state({"w": {"T": 0}}, [WHOLE], [600])],
            "IndexError": [state({"w": {"T": 0}}, [WHOLE], [])],
            "numpy arrays of '.O'": [state({"w": {"T": 0}}, [("numpy", "|O", [1], 8, None)])],
            "numpy arrays of '<i2,O'": [state({"w": {"T": 0}}, [("numpy", "<i2,O", [1], 16, None)])],
            "buffer kind 'opaque' is unknown": [state({"w": {"T": 0}}, [("opaque", "", [1], 8, None)])],
            "RecursionError": [state(b'{"a":' + b'{"l":[' * 100_000 + b"]}" * 100_000 + b"}")],
            "w cannot be put together: the ranks hold 4 elements": two(shard(0)),
            "w cannot be put together: it is a partial": two(shard(0, [["partial", "sum"]], 4)),
            "it lies in several places of the whole tensor": two(shard(0, [["strided", 0, 3]], 3, (6, 2)), shard(1, [["strided", 0, 3]], 3, (6, 2))),
            "a tuple with sharded tensors in it": [state({"w": {"t": [{"T": 0}]}}, [shard(0)])],
            "two parts of the state are both called a.b": [state({"a": {"d": [["b", 1]]}, "a.b": 2})],
            "rank 1 was saved by holdfast.dcp and others were not": [state({"a": 1}), state({"__dcp__": {"d": []}})],
            "saved by holdfast.dcp|written by another version": [state({"__dcp__": {"d": []}}), state({"a": 1})],
            "MemoryError": [state({"z": zero_of(1 << 60)})],
            "No such file": [],
        }.items():
            with self.subTest(says):
                why = self.why(*states) if states else index(self.put("none", []), 1)[1]
                self.assertRegex(why, says)
                self.assertNotIn("Traceback", why)

    def test_many_ranks_take_little_memory(self):
        """Equal parts of many ranks are stored once; for each rank only the fact that it holds them is kept."""
        many = [("torch", "float32", [128, 2], 1024, None)] * 2000
        data = state({"model": {"d": [["layer.%d" % i, {"T": 0}] for i in range(2000)]}}, many[:1])
        job = self.put("many", [data] * 100)
        files = os.path.join(job, "gen-1", "step-2.rank-")
        program = PROGRAM + "; sys.stderr.write(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        made = subprocess.run([sys.executable, "-I", "-S", "-c", program, str(ROOT), files, "100"], capture_output=True, check=True)
        self.assertLess(int(made.stderr) >> 10, 96)

    def test_what_it_names_is_forgotten(self):
        """Named modules do not stay in sys.modules: later code can still test whether torch is there."""
        names = set(sys.modules)
        _index._pickled(_index._named("torch.nowhere", "Thing")())
        self.assertEqual(set(sys.modules), names)


if __name__ == "__main__":
    unittest.main()
