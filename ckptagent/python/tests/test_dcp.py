"""Tests torch.distributed.checkpoint over Holdfast: states are saved, loaded after a kill, resharded and exported."""

import io
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from holdfast import _arena as A

from . import storage
from .case import ClientCase, environment
from .fakeagent import FakeAgent
from .test_torch import torch

SCRIPT = pathlib.Path(__file__).parent / "dcp_script.py"

if torch is not None:
    import torch.distributed.checkpoint as dcp

    import holdfast.dcp
    from holdfast import export


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Ranks(unittest.TestCase):
    """The models of two ranks, FSDP2 and tensor parallel, from memory; then four ranks and two again, from storage."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.job = os.path.join(self.folder, "job-uid")

    def agents(self, world, generation, step):
        folder = os.path.join(self.folder, "world-%d" % world)
        os.makedirs(folder, exist_ok=True)
        agents = [FakeAgent(folder, rank=r, state_bytes=1 << 18, generation=generation, restore_step=step) for r in range(world)]
        for a in agents:
            a.open_grant()
            self.addCleanup(a.close)
        return agents

    def script(self, world, agents=(), **arguments):
        """Runs the script to its end and seals its ranks' saves. Then none of its processes is left."""
        given = {"world": world, "agents": [a.environment() for a in agents], "whole": self.folder, "path": None, "load": 0, "last": 0, "seed": world, **arguments}
        env = environment(OMP_NUM_THREADS="1")
        if given.get("stock"):
            del env["PYTHONPATH"]
        child = subprocess.Popen([sys.executable, "-W", "ignore", str(SCRIPT), json.dumps(given)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ended = threading.Event()
        sealing = threading.Thread(target=self.seal, args=(agents, ended))
        sealing.start()
        try:
            said, _ = child.communicate(timeout=300)
        finally:
            child.kill()
            ended.set()
            sealing.join()
        self.assertEqual(child.returncode, 0, said[-4000:])
        self.assertIn("loaded step %d on %d ranks" % (given["load"], world), said)

    @staticmethod
    def seal(agents, ended):
        while not ended.wait(0.01):
            for a in agents:
                a.seal()

    def store(self, agents, generation, step):
        data = []
        for a in agents:
            (slot,) = [i for i in range(A.SLOTS) if a.slot(i).state == A.SEALED and a.slot(i).step == step]
            data.append(a.data(slot, a.slot(slot).length))
        storage.put(self.job, generation, step, data)

    def test_memory_storage_and_export(self):
        first = self.agents(2, 1, 0)
        self.script(2, first, last=2)
        self.store(first, 1, 1)
        self.store(first, 1, 2)

        second = self.agents(2, 2, 2)  # all ranks are gone; others begin from other weights
        self.script(2, second, load=2, last=3, seed=50)
        self.store(second, 2, 3)

        four = self.agents(4, 3, 0)
        self.script(4, four, path=self.job, load=3, last=4, seed=60)
        self.store(four, 3, 4)
        self.script(2, path=self.job, load=4, last=4, seed=70)

        out = os.path.join(self.folder, "exported")
        self.assertEqual(export.export(self.job, out).left, {})
        self.script(4, path=out, load=4, last=4, seed=80, stock=True)
        export.export(self.job, out + ".pt", "torch", step=3)
        self.assertEqual(torch.load(out + ".pt", weights_only=True)["seen"], {"at": 30})


@unittest.skipIf(torch is None, "TORCH IS MISSING")
@mock.patch("warnings.warn", lambda *a, **k: None)
class OneRank(ClientCase):
    def client(self, agent=None):
        """The client that the modules use, as attach() makes it in a new process."""
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
        ck = self.attach(agent)
        patch = mock.patch("holdfast._client.attach", lambda: ck)
        patch.start()
        self.addCleanup(patch.stop)
        return ck

    def saved(self, state, step=3, agent=None):
        agent = agent or self.agent()
        ck = self.client(agent)
        writer = holdfast.dcp.Writer(step=step)
        dcp.save(state, storage_writer=writer)
        self.assertTrue(writer.saved, writer.saved)
        agent.seal()
        return ck, agent

    def stored(self, *states):
        job = os.path.join(self.folder, "job-uid")
        (slot,) = [i for i in range(A.SLOTS) if states[0].slot(i).state == A.SEALED]
        storage.put(job, 1, 3, [a.data(slot, a.slot(slot).length) for a in states])
        return job, os.path.join(job, "gen-1", "step-3.rank-0")

    def failure(self, call):
        with self.assertRaises((RuntimeError, ValueError, dcp.CheckpointException)) as e:
            call()
        return str(e.exception)

    def test_files_that_are_not_whole_are_named(self):
        _, agent = self.saved({"w": torch.arange(4.0)})
        job, file = self.stored(agent)
        self.client()
        state = {"w": torch.zeros(4)}
        dcp.load(state, storage_reader=holdfast.dcp.Reader(job))
        self.assertEqual(state["w"].tolist(), [0, 1, 2, 3])
        whole = pathlib.Path(file).read_bytes()
        for name, data, says in (
            ("cut off", whole[:-1], "it is cut off"),
            ("damaged", whole[:-1] + bytes([whole[-1] ^ 1]), "its data is damaged"),
            ("missing", None, "it cannot be read"),
        ):
            with self.subTest(name):
                os.unlink(file)
                if data is not None:
                    with open(file, "wb") as f:
                        f.write(data)
                said = self.failure(lambda: dcp.load({"w": torch.zeros(4)}, storage_reader=holdfast.dcp.Reader(job)))
                self.assertIn(file, said)
                self.assertIn(says, said)
                if data is None:
                    break

    def test_export_of_values_and_tensors(self):
        _, agent = self.saved({"w": torch.arange(4.0), "n": {"at": 3}})
        job, _ = self.stored(agent)
        self.assertEqual(export.export(job, job + "-dcp").left, {})
        state = {"w": torch.zeros(4), "n": {"at": 0}}
        dcp.load(state, checkpoint_id=job + "-dcp")
        self.assertEqual((state["w"].tolist(), state["n"]), ([0, 1, 2, 3], {"at": 3}))

    def test_async_save_copies_once_and_at_once(self):
        agent = self.agent(state_bytes=1 << 19)
        self.client(agent)
        w = torch.arange(40000.0)
        writer = holdfast.dcp.Writer(step=3)
        staged = writer.stage({"w": w, "t": w, "n": [1, {"x": w[:5]}]})
        self.assertEqual(staged["w"].data_ptr(), staged["t"].data_ptr())
        w.zero_()
        dcp.save(staged, storage_writer=writer)
        self.assertTrue(writer.saved)
        length = writer._ck._record.length
        self.assertLess(length, 40000 * 4 + 16384, "it lies there twice")
        agent.seal()
        self.next(agent)
        state = {"w": torch.zeros(40000), "t": torch.zeros(40000), "n": [0, {"x": torch.zeros(5)}]}
        dcp.load(state, storage_reader=holdfast.dcp.Reader())
        self.assertEqual(state["w"].tolist(), list(range(40000)))
        self.assertEqual((state["n"][0], state["n"][1]["x"].tolist()), (1, [0, 1, 2, 3, 4]))

    def next(self, agent):
        ck = holdfast._client.attach()
        after = self.next_generation(ck, agent, 3)
        self.client(after)
        return after

    def test_a_save_that_another_one_overtakes_is_not_announced(self):
        agent = self.agent()
        self.client(agent)
        first = holdfast.dcp.Writer(step=3)
        staged = first.stage({"w": torch.ones(4)})
        holdfast._client.attach().track(w=torch.zeros(4))
        self.assertTrue(holdfast._client.attach().save(5))
        dcp.save(staged, storage_writer=first)
        self.assertEqual((bool(first.saved), first.saved.reason), (False, "another save took its place"))
        self.assertEqual(agent.seal(), 5)

    def test_what_was_staged_for_nothing_is_no_part_of_the_next_save(self):
        agent = self.agent()
        ck = self.client(agent)
        t = torch.arange(3.0)
        ck.track(state={"first": torch.ones(1), "t": t})
        for step in range(1, 5):  # one slot is written twice
            self.assertTrue(ck.save(step))
            agent.seal()
        holdfast.dcp.Writer(step=5).stage({"a": torch.ones(200)})
        self.assertTrue(ck.save(5))
        self.assertEqual(agent.seal(), 5)
        slot, header = ck._arena.find(5)
        at, prefix = ck._packer._layout.offsets[1], len(ck._packer._layout.prefixes[1])
        data = agent.data(slot, header.length)
        self.assertEqual(torch.load(io.BytesIO(data[at - prefix : at + 12]), weights_only=True).tolist(), t.tolist())

    def test_another_layout_in_memory_is_refused_or_read_from_storage(self):
        ck, agent = self.saved({"w": torch.arange(4.0)})
        after = self.next_generation(ck, agent, 3)
        self.client(after)
        reader = holdfast.dcp.Reader()
        reader.read_metadata()
        reader._memory.items.clear()  # as on a rank that held other parts
        with mock.patch.object(reader, "read_metadata", lambda: holdfast._planned.metadata(reader._memory.table)):
            said = self.failure(lambda: dcp.load({"w": torch.zeros(4)}, storage_reader=reader))
        self.assertIn("step 3 was saved with another layout: this rank's memory has no part of w at [0]", said)

    def test_without_an_agent_torch_writes_files(self):
        self.client()
        said = self.failure(lambda: dcp.save({"w": torch.ones(2)}, storage_writer=holdfast.dcp.Writer()))
        self.assertIn("give checkpoint_id or Writer(path)", said)
        path = os.path.join(self.folder, "step-3")
        dcp.save({"w": torch.ones(2)}, checkpoint_id=path, storage_writer=holdfast.dcp.Writer())
        dcp.async_save({"w": torch.ones(2)}, checkpoint_id=path, storage_writer=holdfast.dcp.Writer()).result()
        state, reader = {"w": torch.zeros(2)}, holdfast.dcp.Reader(path)
        self.assertEqual(reader.step, 3)
        dcp.load(state, storage_reader=reader)
        self.assertEqual(state["w"].tolist(), [1, 1])
        self.assertIn("check reader.step first", self.failure(lambda: dcp.load({}, storage_reader=holdfast.dcp.Reader())))

    def test_what_cannot_be_kept_ends_no_training(self):
        agent = self.agent()
        self.client(agent)
        writer = holdfast.dcp.Writer(step=1)
        with self.quiet():
            dcp.save({"w": torch.zeros(1 << 20)}, storage_writer=writer)
            self.assertIn("state needs", writer.saved.reason)
            dcp.async_save({"w": torch.zeros(1 << 20)}, storage_writer=writer).result()
            self.assertIn("state needs", writer.saved.reason)
        self.assertEqual(agent.client().refused, 2)
        writer.step = None
        self.assertIn("end checkpoint_id in its number", self.failure(lambda: dcp.save({}, storage_writer=writer)))
