"""Tests the client under failures: refused restores, kills during saves, holds by the agent. Also the bytes that it writes."""

import array
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from unittest import mock

import holdfast
from holdfast import _arena as A
from holdfast import _client

from .case import ClientCase
from .fakeagent import FakeAgent

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT.parent / "format" / "testdata"


class RefusedRestores(ClientCase):
    def saved(self, **objects):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(**objects)
        self.assertTrue(ck.save(4))
        agent.seal()
        return self.next_generation(ck, agent, 4)

    def test_a_step_that_is_not_there(self):
        agent = self.saved(s=bytearray(1))
        agent.restore_step = 9
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        with self.assertRaisesRegex(holdfast.RestoreError, r"restoring step 9: the arena holds \[4\]"):
            ck.restore()

    def caught(self):
        agent = self.saved(s=bytearray(1))
        agent.restore_step = 9
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        with self.assertRaises(holdfast.RestoreError):
            ck.restore()
        self.assertTrue(agent.client().flags & A.FLAG_RESTORING)  # a script that ends here failed to restore
        return agent, ck

    def test_a_script_that_catches_the_error_and_trains_is_restoring_no_more(self):
        agent, ck = self.caught()
        ck.step(1)
        self.assertFalse(agent.client().flags & A.FLAG_RESTORING)

    def test_nor_is_one_that_saves(self):
        agent, ck = self.caught()
        ck.save(1)
        self.assertFalse(agent.client().flags & A.FLAG_RESTORING)

    def test_a_granted_slot_is_never_read(self):
        agent = self.saved(s=bytearray(1))
        for i in range(A.SLOTS):
            if agent.slot(i).step == 4:
                agent.set_slot(i, agent.slot(i)._replace(state=A.GRANTED))
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        with self.assertRaisesRegex(holdfast.RestoreError, "no sealed step"):
            ck.restore()

    def test_a_name_that_was_not_saved(self):
        agent = self.saved(s=bytearray(1))
        ck = self.attach(agent)
        ck.track(s=bytearray(1), optimizer=bytearray(1))
        with self.assertRaisesRegex(holdfast.RestoreError, "it holds no optimizer; the script that saved it tracked s"):
            ck.restore()

    def test_a_value_that_cannot_take_what_was_saved(self):
        agent = self.saved(s=[1, 2])
        ck = self.attach(agent)
        ck.track(s={"a": 1})
        with self.assertRaisesRegex(holdfast.RestoreError, "s is a dict, which cannot be changed in place"):
            ck.restore()

    def test_directory_that_lies(self):
        agent = self.saved(s=bytearray(1))
        slot = next(i for i in range(A.SLOTS) if agent.slot(i).step == 4 and agent.slot(i).state == A.SEALED)
        agent._write(A.META + slot * agent.stride + 8, (1 << 40).to_bytes(8, "little"))
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        with self.assertRaisesRegex(holdfast.RestoreError, "past its end"):
            ck.restore()


class GoldenPythonArena(ClientCase):
    """The Go tests read what this client writes. HOLDFAST_UPDATE_GOLDEN=1 rewrites the file."""

    def test_bytes(self):
        golden = GOLDEN / "python.arena"
        path = os.path.join(self.folder, "rank-1.arena")
        shutil.copy(GOLDEN / "granted.arena", path)
        env = {"HOLDFAST_ARENA": path, "HOLDFAST_GENERATION": "7", "HOLDFAST_LOCAL_RANK": "1"}
        with mock.patch("os.getpid", return_value=4242):
            ck = self.attach(environment=env)
            ck.track(words={"greeting": bytearray(b"hello"), "n": 3, "again": array.array("i", [1, 2, 3])})
            ck.restore()
            self.assertTrue(ck.save(3), "slot holds %d" % ck._arena.header.state_bytes)
        got = pathlib.Path(path).read_bytes()
        if os.environ.get("HOLDFAST_UPDATE_GOLDEN"):
            golden.write_bytes(got)
        self.assertEqual(got, golden.read_bytes(), "the client no longer writes these bytes")


class KilledWhileSaving(ClientCase):
    """Kills a trainer at random moments of a save; a sealed step must always be whole."""

    SCRIPT = textwrap.dedent(
        """
        import holdfast
        ck = holdfast.attach()
        words = bytearray(200_000)
        ck.track(words=words)
        step = ck.restore()
        assert not step or words == bytes([step % 251]) * len(words), "torn"
        print("ready", flush=True)
        while True:
            step += 1
            words[:] = bytes([step % 251]) * len(words)
            ck.save(step)
        """
    )

    def test_nothing_torn(self):
        agent = FakeAgent(self.folder, state_bytes=210_000)
        self.addCleanup(lambda: agent.close())
        agent.open_grant()
        chance, best = random.Random(5), 0
        for generation in range(1, 13):
            env = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", **agent.environment())
            child = subprocess.Popen([sys.executable, "-c", self.SCRIPT], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(child.stdout.readline(), b"ready\n", child.stderr.read() if child.poll() is not None else "")
            until = time.monotonic() + chance.uniform(0.005, 0.06)
            while time.monotonic() < until:
                agent.seal()
            child.kill()
            child.communicate()
            agent.seal()
            steps = [agent.slot(i) for i in range(A.SLOTS) if agent.slot(i).state == A.SEALED]
            newest = max((s.step for s in steps), default=0)
            self.assertGreaterEqual(newest, best, "generation %d" % generation)
            best = newest
            agent.close()
            agent = FakeAgent(self.folder, state_bytes=210_000, generation=generation + 1, restore_step=best)
            agent.open_grant()
        self.assertGreater(best, 10)


class Held(ClientCase):
    """A barrier holds a rank in save once it has copied that step or a later one."""

    def held(self, step, barrier, then, silence=None, after=0.3):
        """Saves step under a barrier at that step and calls then(agent) a little later; returns how long the save took."""
        agent = self.agent()
        agent.barrier_step = barrier
        agent.publish()
        ck = self.attach(agent)
        ck.track(a=bytearray(100))
        ck.restore()
        timer = threading.Timer(after, then, [agent])
        start = time.monotonic()
        timer.start()
        self.addCleanup(timer.join)
        self.addCleanup(timer.cancel)
        with mock.patch.object(_client, "_HOLD_SILENCE", silence or _client._HOLD_SILENCE), contextlib.redirect_stderr(self.said):
            self.assertTrue(ck.save(step))
        return time.monotonic() - start

    def lift(self, agent):
        agent.barrier_step = 0
        agent.publish()

    def test_until_it_is_lifted(self):
        self.assertGreaterEqual(self.held(7, 7, self.lift), 0.3)

    def test_until_it_is_above(self):
        def higher(agent):
            agent.barrier_step = 9
            agent.publish()

        self.assertGreaterEqual(self.held(8, 7, higher), 0.3)

    def test_a_step_below_is_not_held(self):
        lifted = []
        self.held(6, 7, lifted.append, after=60)
        self.assertEqual(lifted, [])

    def test_not_for_ever_where_nobody_says_so_any_more(self):
        self.held(7, 7, lambda agent: None, silence=1.0)
        self.assertIn("held in save, and the agent no longer responds", self.said.getvalue())

    def test_while_it_is_said_again(self):
        def again(agent):
            for _ in range(8):
                agent.publish()
                time.sleep(0.1)
            self.lift(agent)

        self.assertGreaterEqual(self.held(7, 7, again, silence=60.0), 1.0)
        self.assertNotIn("nothing more", self.said.getvalue())

    def test_not_by_a_word_for_another_generation(self):
        def next_generation(agent):
            agent.generation = 2
            agent.publish()

        self.assertGreaterEqual(self.held(7, 7, next_generation), 0.3)


if __name__ == "__main__":
    unittest.main()
