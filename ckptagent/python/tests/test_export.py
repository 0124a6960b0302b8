"""Stock torch reads an exported step; incomplete and damaged steps are detected and named."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings

from holdfast import _arena as A

from . import storage
from .case import ClientCase, environment
from .fakeagent import FakeAgent
from .test_torch import torch

HERE = pathlib.Path(__file__).parent
STEP = 2

if torch is not None:
    from holdfast import export
    from holdfast._crc32c import _PIECE, _SPAN, crc32c


def script(name, *args, **env):
    """Runs a script of this folder in an interpreter that finds of Holdfast only what env names."""
    clean = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    clean.update(OMP_NUM_THREADS="1", **env)
    r = subprocess.run([sys.executable, "-W", "ignore", str(HERE / name), *args], env=clean, capture_output=True, text=True)
    if r.returncode:
        raise AssertionError("%s ended with %d: %s" % (name, r.returncode, (r.stdout + r.stderr)[-4000:]))
    return r.stdout


def sealed_data(agent):
    """The sealed bytes, which the agent would write to storage."""
    assert agent.seal() is not None
    slot = max(range(A.SLOTS), key=lambda i: agent.slot(i).step)
    return agent.data(slot, agent.slot(slot).length)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Trained(unittest.TestCase):
    """FSDP2, tensor parallel, both, DDP and ZeRO-1 on four ranks."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.job, cls.whole = os.path.join(cls.folder, "job-uid"), os.path.join(cls.folder, "whole.pt")
        agents = [FakeAgent(cls.folder, rank=r, state_bytes=1 << 18) for r in range(4)]
        for a in agents:
            a.open_grant()
            cls.addClassCleanup(a.close)
        script("export_train.py", str(STEP), cls.whole, json.dumps([a.environment() for a in agents]), PYTHONPATH=environment()["PYTHONPATH"])
        storage.put(cls.job, 1, STEP, [sealed_data(a) for a in agents])

    def out(self, name):
        return os.path.join(self.folder, name)

    def test_stock_torch_loads_saves_and_loads_it(self):
        out = self.out("dcp")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertEqual(export.main([self.job, "--to", "dcp", out]), 0)
        said = said.getvalue()
        self.assertRegex(said, r"exported step 2 of generation 1 \(4 ranks, \d+ bytes, \d+ names\) to .*, for dcp")
        self.assertIn("ddp.module.1.running_mean is the lowest rank's value; ranks 2, 3 hold another: each rank's own is rank-<rank>.ddp.module.1.running_mean", said)
        self.assertIn("seen.at is the lowest rank's value; ranks 1, 2, 3 hold another", said)
        self.assertEqual(len(said.splitlines()), 4, said)  # these, and running_var: nothing else differs, nothing is left out
        said = script("export_stock.py", out, self.whole, self.out("again"))
        self.assertRegex(said, r"each rank's own values are there\n(\d+) tensors are equal on 4 ranks\n\1 tensors are equal on 2 ranks")

    def test_torch_load(self):
        out = self.out("state.pt")
        report = export.export(self.job, out, "torch")
        self.assertEqual((report.step, report.left), (STEP, {}))
        got, want = torch.load(out, weights_only=True), torch.load(self.whole, weights_only=True)
        for name, t in want.items():
            at, path = got, name.split(".", 1)
            if path[0].endswith("_o"):
                parts = path[1].split(".")
                path = [path[0], "state", ".".join(parts[1:-1]) if path[0] == "named_o" else int(parts[1]), parts[-1]]
            for p in path:
                at = at[p]
            self.assertTrue(torch.equal(at, t), name)
        model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(got["zero_o"])
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.01)
        self.assertTrue(torch.equal(optimizer.state[model[2].weight]["exp_avg"], want["zero_o.state.2.exp_avg"]))
        self.assertEqual(got["rank-3"]["seen"], {"at": 30})

    def test_safetensors(self):
        out = self.out("state.safetensors")
        try:
            from safetensors.torch import load_file
        except ImportError:
            with self.assertRaisesRegex(export.ExportError, "pip install safetensors"):
                export.export(self.job, out, "safetensors")
            return
        report = export.export(self.job, out, "safetensors")
        got = load_file(out)
        for name, t in torch.load(self.whole, weights_only=True).items():
            self.assertTrue(torch.equal(got[name], t), name)
        self.assertEqual(report.left["rank-0.seen.at"], "no tensor")


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Folder(ClientCase):
    """One or two ranks without a process group."""

    def keep(self, generation=1, step=STEP, ranks=1, **objects):
        """Rank data with these states, written to storage. An object may be a function of the rank."""
        states = []
        for rank in range(ranks):
            agent = FakeAgent(tempfile.mkdtemp(dir=self.folder), rank=rank, state_bytes=1 << 20)
            agent.open_grant()
            self.addCleanup(agent.close)
            ck = self.attach(agent)
            ck.track(**{k: {"v": v(rank)} if callable(v) else v for k, v in objects.items()})
            self.assertTrue(ck.save(step))
            states.append(sealed_data(agent))
            self.release(ck)
        self.job = os.path.join(self.folder, "job")
        storage.put(self.job, generation, step, states)

    def file(self, name, generation=1):
        return os.path.join(self.job, "gen-%d" % generation, name)

    def change(self, name, at, by=None):
        with open(self.file(name), "r+b") as f:
            f.seek(at)
            was = f.read(1)[0]
            f.seek(at)
            f.write(bytes([was ^ 1 if by is None else by]))

    def exported(self, to="torch", **options):
        out = os.path.join(tempfile.mkdtemp(dir=self.folder), "out")
        self.report = export.export(self.job, out, to, **options)
        return torch.load(out, weights_only=True) if to == "torch" else out

    def refused(self, says, **options):
        where = tempfile.mkdtemp(dir=self.folder)
        with self.assertRaisesRegex(export.ExportError, says):
            export.export(self.job, os.path.join(where, "out"), **options)
        self.assertEqual(os.listdir(where), [])

    def test_every_region_is_checked(self):
        self.keep(ranks=2, m={"w": torch.arange(5000.0), "s": {1, 2}, "n": 3})
        name = "step-2.rank-1"
        with open(self.file(name), "rb") as f:
            header, data = f.read(4096), f.read()
        _, layout, _, tree, _, objects, length = struct.unpack_from("<8s6Q", data)
        for region, at, says in (
            ("magic", 0, "it is no rank file"),
            ("rank", 12, "its header is damaged"),
            ("length", 32, "its header is damaged"),
            ("checksum of the header", 124, "its header is damaged"),
            ("directory of the state", 4096 + 8, "its data is damaged"),
            ("tensor", 4096 + 64, "its data is damaged"),
            ("end of a tensor", 4096 + 64 + 19999, "its data is damaged"),
            ("layout", 4096 + layout + 3, "its data is damaged"),
            ("tree", 4096 + tree + 3, "its data is damaged"),
            ("objects", 4096 + objects + length - 1, "its data is damaged"),
        ):
            with self.subTest(region):
                self.change(name, at)
                for to in ("dcp", "torch"):
                    self.refused("gen-1/%s: %s.*export another step" % (name, says), to=to)
                self.change(name, at)
        self.assertEqual(self.exported()["m"]["n"], 3)
        self.assertEqual(len(header), 4096)

    def test_files_that_are_not_whole(self):
        self.keep(ranks=2, m={"w": torch.ones(9)})
        path = self.file("step-2.rank-1")
        shutil.copy(path, path + ".kept")
        size = os.path.getsize(path)
        for cut in (0, 100, 4096, size - 1):
            os.truncate(path, cut)
            self.refused("step-2.rank-1: it is cut off: it has %d bytes" % cut)
            shutil.copy(path + ".kept", path)
        with open(path, "ab") as f:
            f.write(b"\0")
        self.refused("step-2.rank-1: it is too long")
        os.unlink(path)
        self.refused("step-2.rank-1: the manifest names it, and it cannot be read: No such file")
        shutil.copy(self.file("step-2.rank-0"), path)
        self.refused(r"step-2.rank-1: its header says .* \(0, 2, 1, 0, 2,")

    def test_manifests(self):
        self.keep(1, 2, m={"n": 12})
        self.keep(1, 3, m={"n": 13})
        self.keep(3, 2, m={"n": 32})
        self.assertEqual(self.exported()["m"]["n"], 32, "of a later generation, though of a lower step")
        self.assertEqual(self.exported(step=3)["m"]["n"], 13)
        self.refused(r"no complete step 4; complete are: 2 \(generation 1\), 3 \(generation 1\), 2 \(generation 3\)", step=4)
        newest = self.file("step-2.manifest.json", 3)
        with open(newest) as f:
            text = f.read()
        for torn, says in (
            (text[:-1], "it is torn"),
            ("", "it is torn"),
            (text.replace('"ranks"', '"rank"'), "it is torn"),
            (text.replace('"version": 1', '"version": 3'), "it has version 3, this program knows 1: use the client of a newer image"),
            (text.replace('"step": 2', '"step": 3'), "it says generation 3, step 3"),
        ):
            with open(newest, "w") as f:
                f.write(torn)
            self.assertEqual(self.exported()["m"]["n"], 13)
            self.assertRegex(self.report.passed[0], "gen-3/step-2.manifest.json is not taken: " + says)
        with open(newest, "w") as f:
            f.write(text.replace('"crc32c": ', '"crc32c": 1'))
        self.refused("gen-3/step-2.rank-0: its header says")
        os.unlink(self.file("step-3.manifest.json"))
        os.unlink(self.file("step-2.manifest.json"))
        os.unlink(newest)
        self.refused("holds no complete step; name a job's folder")
        self.job = os.path.join(self.folder, "nowhere")
        self.refused("No such file or directory; name a job's folder")

    def test_as_a_program(self):
        r = subprocess.run([sys.executable, "-m", "holdfast.export", self.folder, "--to", "dcp", "out"], env=environment(), cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("holdfast.export: %s holds no complete step" % self.folder, r.stderr)

    def test_what_is_asked_for(self):
        self.keep(m={"n": 1})
        self.refused("there is no format 'hdf'", to="hdf")
        out = os.path.join(self.folder, "there")
        open(out, "w").close()
        for what, says in ((out, "exists already"), (os.path.join(self.folder, "no", "out"), "does not exist: create it first")):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                self.assertEqual(export.main([self.job, "--to", "dcp", what]), 1)
            self.assertIn(says, said.getvalue())

    def test_kinds_of_leaves(self):
        import array
        import collections

        import numpy as np

        shared = torch.randn(3, 2)
        last = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        m = {
            "bf16": torch.randn(5).bfloat16(), "fp8": torch.randn(4).to(torch.float8_e4m3fn), "zero": torch.tensor(4), "none": torch.empty(0, 3),
            "last": last, "tied": [shared, shared], "numpy": np.arange(3, dtype=np.int16), "bytes": b"ab", "array": array.array("d", [1.5]),
            "nan": float("nan"), "order": collections.OrderedDict(a=1), "dtype": torch.float16, "size": torch.Size([3]), "scalar": np.float32(2.5),
            "empty": {}, "list": [1, [2, None]], "tuple": (1, "x"), 7: "number",
        }  # fmt: skip
        self.keep(m=m)
        got = self.exported()["m"]
        self.assertEqual(self.report.left, {})
        self.assertEqual(got["tied"][0].data_ptr(), got["tied"][1].data_ptr())
        for name in ("bf16", "fp8", "zero", "none", "last"):
            self.assertEqual((got[name].dtype, got[name].shape), (m[name].dtype, m[name].shape))
            self.assertEqual(got[name].tolist(), m[name].tolist())
        self.assertEqual(got["numpy"].tolist(), [0, 1, 2])
        self.assertEqual((got["array"], got["scalar"], str(got["nan"])), ([1.5], 2.5, "nan"))
        for name in ("bytes", "order", "dtype", "size", "empty", "list", "tuple", 7):
            self.assertEqual(got[name], m[name])

        import torch.distributed.checkpoint as dcp

        warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
        state = {"m": {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for k, v in m.items() if k != "empty"}}
        state["m"].update(tied=[torch.zeros(3, 2), torch.zeros(3, 2)], order={"a": None})
        dcp.load(state, checkpoint_id=self.exported("dcp"))
        self.assertEqual(state["m"]["tied"][1].tolist(), shared.tolist())
        self.assertEqual(state["m"]["last"].tolist(), last.tolist())
        self.assertEqual((state["m"]["list"], state["m"]["order"]), ([1, [2, None]], {"a": 1}))
        self.assertEqual((state["m"]["numpy"].dtype, state["m"]["scalar"]), (np.int16, np.float32(2.5)))

    def test_what_the_go_store_wrote(self):
        for name in ("job-uid", "branch-uid"):  # of the first branch, and of a later one
            self.job = str(HERE.parents[1] / "store" / "testdata" / name)
            got = self.exported()
            self.assertEqual((self.report.generation, self.report.step, self.report.ranks, self.report.differ), (7, 3, 2, {}))
            self.assertEqual(got, {"words": {"greeting": bytearray(b"hello"), "n": 3, "again": [1, 2, 3]}})

    def test_a_file_of_another_branch(self):
        self.job = shutil.copytree(HERE.parents[1] / "store" / "testdata" / "branch-uid", os.path.join(self.folder, "job"))
        shutil.copy(HERE.parents[1] / "store" / "testdata" / "job-uid" / "gen-7" / "step-3.rank-1", os.path.join(self.job, "gen-7"))
        self.refused(r"step-3.rank-1: its header says .* \(1, 3, 7, 0, 2, .* should say \(1, 3, 7, 2, 2,")

    def test_stock_conversion_to_a_torch_file(self):
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        self.keep(m={"l": [torch.ones(2), {"a": 3}], "d": {5: torch.zeros(1)}})
        out = os.path.join(self.folder, "converted.pt")
        dcp_to_torch_save(self.exported("dcp"), out)
        got = torch.load(out, weights_only=False)["m"]
        self.assertEqual((got["l"][0].tolist(), got["l"][1], got["d"]["5"].tolist()), ([1, 1], {"a": 3}, [0]))

    def test_nothing_is_unpickled_that_could_act(self):
        self.keep(m={"acts": Acts(), "holds": [Acts()], "set": {3}, "n": 1})
        for to in ("torch", "dcp"):
            Acts.made.clear()
            self.exported(to)
            self.assertEqual(Acts.made, [])
            left = {"m.acts": "%s._act" % __name__, "m.holds": "%s._act" % __name__}
            self.assertEqual(self.report.left, {**left, "m.set": "builtins.set"} if to == "torch" else left)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            export.main([self.job, "--to", "dcp", os.path.join(self.folder, "out")])
        self.assertRegex(said.getvalue(), r"left out: m.acts \(.*_act\)\n.*\n.*export with --trust")
        self.exported("dcp", trust=True)
        self.assertEqual((Acts.made, self.report.left), ([1, 1], {}))
        got = self.exported("torch", trust=True)
        self.assertEqual(list(got["m"]), ["n"])
        self.assertEqual(self.report.left, {"m.acts": "%s.Acts" % __name__, "m.holds": "%s.Acts" % __name__, "m.set": "builtins.set"})

    def test_ranks_that_differ(self):
        self.keep(ranks=3, same=lambda r: torch.ones(2), one=lambda r: torch.full((2,), 1.0 * (r == 1)), shape=lambda r: torch.zeros(1 + r), kind=lambda r: r if r else torch.ones(1))
        got = self.exported()
        self.assertEqual(self.report.differ, {"one.v": [1], "shape.v": [1, 2], "kind.v": [1, 2]})
        self.assertEqual(got["one"]["v"].tolist(), [0, 0])
        self.assertEqual([got["rank-%d" % r]["one"]["v"].tolist() for r in range(3)], [[0, 0], [1, 1], [0, 0]])
        self.assertEqual(got["rank-2"]["kind"]["v"], 2)
        self.assertNotIn("same", got["rank-1"])

    def test_ranks_whose_states_have_other_forms(self):
        self.keep(ranks=2, m=lambda r: [{"a": 1}, {}] if r else {"b": 2})
        got = self.exported()["m"]["v"]
        self.assertEqual(got, {"b": 2, 0: {"a": 1}, 1: {}})
        self.keep(ranks=2, m=lambda r: {"a": r} if r else 3)
        self.refused("m.v.a is a value on one rank and holds others on another, .*: export --to dcp", to="torch")
        self.exported("dcp")

    def test_names_that_clash(self):
        self.keep(m={"a.b": 1, "a": {"b": 2}})
        self.refused("two parts of the state are both called m.a.b")

    def test_nothing_is_left_of_a_write_that_failed(self):
        self.keep(m={"w": torch.ones(3)})
        from unittest import mock

        for to, broken in (("dcp", "torch.distributed.checkpoint.FileSystemWriter.finish"), ("torch", "torch.load")):
            where = tempfile.mkdtemp(dir=self.folder)
            with mock.patch(broken, side_effect=OSError(28, "No space left on device")), self.assertRaisesRegex(export.ExportError, "out: writing it: .*No space left"):
                export.export(self.job, os.path.join(where, "out"), to)
            self.assertEqual(os.listdir(where), [])

    def test_a_file_that_this_torch_does_not_read_back(self):
        self.keep(m={"w": torch.ones(3)})
        from unittest import mock

        where, says = tempfile.mkdtemp(dir=self.folder), "Weights only load failed.\n(1) advice\nWeightsUnpickler error: Unsupported global: GLOBAL _codecs.encode"
        with mock.patch("torch.load", side_effect=pickle.UnpicklingError(says)), self.assertRaisesRegex(export.ExportError, "export with a newer one, or --to dcp or safetensors: Weights.*_codecs"):
            export.export(self.job, os.path.join(where, "out"), "torch")
        self.assertEqual(os.listdir(where), [])


def _act():
    Acts.made.append(1)
    return Acts()


class Acts:
    made = []

    def __reduce__(self):
        return _act, ()


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Parts(unittest.TestCase):
    def test_crc32c_is_the_tables(self):
        for n in (0, 3, 8 * _SPAN - 1, 8 * _SPAN, 8 * _SPAN + 8, 8 * _SPAN + 15, 8 * (_PIECE + _SPAN), 8 * (_PIECE + _SPAN + 1) + 3):
            data = bytearray(os.urandom(n + 5))
            self.assertEqual(crc32c(data, 5, n), A.crc32c(data[5:]), n)

    def test_regions_are_torchs(self):
        from holdfast import _regions, _sharded
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.placement_types import _StridedShard

        checked = 0
        for mesh, placements in (
            ((4,), [("shard", 0)]), ((2, 2), [("shard", 0), ("shard", 0)]), ((2, 2), [("strided", 0, 2), ("shard", 0)]),
            ((3, 2), [("strided", 1, 2), ("shard", 1)]), ((2, 3), [("shard", 0), ("shard", 1)]), ((2, 2), [("replicate",), ("shard", 1)]),
        ):  # fmt: skip
            for size in (1, 3, 4, 7, 12, 13):
                whole = torch.arange(size * 5 * size).view(size, 5 * size)
                for at in ((i, j)[: len(mesh)] for i in range(mesh[0]) for j in range(mesh[-1] if len(mesh) > 1 else 1)):
                    local = whole
                    for ranks, i, (kind, *rest) in zip(mesh, at, placements):
                        if kind != "replicate":
                            make = Shard(*rest) if kind == "shard" else _StridedShard(rest[0], split_factor=rest[1])
                            local = make._split_tensor(local, ranks, with_padding=False, contiguous=True)[0][i]
                    part = _sharded.Part(None, tuple(whole.shape), (), mesh, None, at, tuple(placements))
                    seen = 0
                    for offsets, inner, sizes in _regions.regions(part, local.shape):
                        a, b = (t[tuple(slice(o, o + n) for o, n in zip(begin, sizes))] for t, begin in ((whole, offsets), (local, inner)))
                        self.assertTrue(torch.equal(a, b), (mesh, placements, size, at))
                        seen += a.numel()
                    self.assertEqual(seen, local.numel())
                    checked += 1
        self.assertEqual(checked, 6 * (4 + 4 + 4 + 6 + 6 + 4))

    def test_shards_that_are_no_whole(self):
        from holdfast import _sharded, _union

        def shard(at, rows, placement=("shard", 0), shape=(4, 2)):
            return {"w": _sharded.Saved(_sharded.Part(None, shape, (2, 1), (2,), None, (at,), (placement,)), torch.ones(rows, 2))}

        whole = _union.unite([shard(0, 2), shard(1, 2)]).entries["w"]
        self.assertEqual([r.offsets for r, _ in whole.parts], [(0, 0), (2, 0)])
        for states, says in (
            ([shard(0, 2)], "w cannot be put together: the ranks hold 4 elements of a tensor of shape .4, 2., which has 8"),
            ([shard(0, 3), shard(1, 2)], "w cannot be put together: the rank at .0,. holds .3, 2. of it, where its layout says .2, 2."),
            ([shard(0, 4, ("partial", "sum"))], "w cannot be put together: it is a partial sum"),
            ([{"w": (shard(0, 2)["w"],)}], "w is a tuple with sharded tensors in it"),
        ):
            with self.assertRaisesRegex(export.ExportError, says):
                _union.unite(states)

    def test_parts_of_zero_1(self):
        from holdfast import _union

        def rank(state, params, *of):
            return {"o": {"optim": {"state": state, "param_groups": [{"params": p} for p in params]}, "groups": [{"lr": 1}, {"lr": 2}], "part": [], "of": list(of)}}

        states = [rank({0: {"m": 10}}, [[0], []], [2, [1]], [1, []]), rank({0: {"m": 20}, 1: {"m": 30}}, [[0], [1]], [2, [0]], [1, [2]])]
        union = _union.unite(states)
        got = {name: e.value for name, e in union.entries.items()}
        groups = {"o.param_groups.0.lr": 1, "o.param_groups.0.params": [0, 1], "o.param_groups.1.lr": 2, "o.param_groups.1.params": [2]}
        self.assertEqual((got, union.differ), ({"o.state.1.m": 10, "o.state.0.m": 20, "o.state.2.m": 30, **groups}, {}))
        for s in states:
            del s["o"]["of"]  # as older clients saved it: without the owners of the parameters
        union = _union.unite(states)
        self.assertEqual([union.entries["rank-%d.o.optim.state.0.m" % r].value for r in (0, 1)], [10, 20])

    def test_names_of_parameters(self):
        from holdfast import _union

        def optimizer(*names):
            groups = [{"params": [i], "param_names": [n]} if n else {"params": [i]} for i, n in enumerate(names)]
            return {"o": {"state": {0: {"m": 10}, 1: {"m": 20}}, "param_groups": groups}}

        for names, keys in ((("a.w", "b"), ["a.w", "b"]), (("a", "a"), ["0", "1"]), (("a", None), ["0", "1"])):
            entries = _union.unite([optimizer(*names)]).entries
            self.assertEqual([k for k in entries if k.startswith("o.state")], ["o.state.%s.m" % k for k in keys])
            self.assertEqual(entries["o.param_groups.1.params"].value, ["b"] if keys[1] == "b" else [1])


if __name__ == "__main__":
    unittest.main()
