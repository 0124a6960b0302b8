"""Tests attach, track, save and restore without torch."""

import array
import collections
import contextlib
import io
import math
import os
import random
import threading
import time
import unittest
from unittest import mock

import holdfast
from holdfast import _arena as A
from holdfast import _client

from .case import ClientCase, Holder

# PATIENCE is how many seconds a call that does not wait may take on a very busy machine.
PATIENCE = 120


class WithoutAgent(ClientCase):
    def test_everything_does_nothing(self):
        ck = self.attach()
        state = {"n": 1}
        ck.track(state=state, rng=True)
        self.assertEqual(ck.restore(), 0)
        self.assertFalse(ck.save(1))
        ck.step(2)
        self.assertFalse(ck.active)
        self.assertEqual(state, {"n": 1})
        self.assertEqual(self.said.getvalue(), "")

    def test_a_process_of_the_container_that_is_no_rank_gets_one_message(self):
        ck = self.attach(environment={"HOLDFAST_CONTAINER": "c1"})
        ck.restore()
        self.assertFalse(ck.save(1))
        said = self.said.getvalue()
        self.assertIn("it is not a rank, as no launcher that Holdfast supports started it", said)
        self.assertEqual(said.count("\n"), 1)

    def test_state_in_memory_off_reports_steps(self):
        agent = self.agent()
        env = agent.environment()
        del env["HOLDFAST_ARENA"]
        ck = self.attach(environment=env)
        self.assertIn("state in memory is off", self.said.getvalue())
        ck.restore()
        self.assertFalse(ck.save(1))
        ck.step(2)
        events = agent.events()
        self.assertEqual([(e["ev"], e.get("step")) for e in events], [("attached", None), ("restored", 0), ("step", 1), ("step", 2)])
        self.assertTrue(all(e["v"] == 1 and e["rank"] == 0 and e["gen"] == 1 and e["pid"] == os.getpid() for e in events))

    def test_a_restore_step_without_an_arena_is_an_error(self):
        ck = self.attach(environment={"HOLDFAST_SOCKET": "/nowhere", "HOLDFAST_RESTORE_STEP": "4"})
        with self.assertRaisesRegex(holdfast.RestoreError, "no arena"):
            ck.restore()


class SaveAndRestore(ClientCase):
    def test_round_trip(self):
        agent = self.agent()
        state = {
            "none": None, "yes": True, "n": 12345678901234567890, "x": 0.1, "nan": math.nan, "inf": -math.inf, "text": "ä",
            "bytes": b"\0\1", "buffer": bytearray(b"hello"), "array": array.array("d", [1.5, -2.5]),
            "list": [1, [2, (3, "4")]], "tuple": (0.9, 0.999), 7: "int key", (1, 2): "tuple key", None: "none key", False: 0,
            "ordered": collections.OrderedDict([("b", 1), ("a", 2)]), "set": {1, 2}, "empty": {}, "complex": 1 + 2j,
        }  # fmt: skip
        ck = self.attach(agent)
        ck.track(all=Holder(**{str(i): v for i, v in enumerate(state.items())}), plain=dict(state))
        self.assertEqual(ck.restore(), 0)
        self.assertTrue(ck.save(5))
        self.assertEqual(agent.seal(), 5)

        agent = self.next_generation(ck, agent, 5)
        ck = self.attach(agent)
        back, held = {"buffer": bytearray(5), "gone": 1}, Holder()
        buffer = back["buffer"]
        ck.track(all=held, plain=back)
        self.assertEqual(ck.restore(), 5)
        self.assertEqual(list(back), ["buffer"] + [k for k in state if k != "buffer"])
        self.assertIs(back["buffer"], buffer)
        self.assertTrue(math.isnan(back.pop("nan")))
        state.pop("nan")
        self.assertEqual(back, state)
        for k, v in back.items():
            self.assertIs(type(v), type(state[k]), k)
        self.assertEqual(held.state["0"], ("none", None))

    def test_datagrams_and_levels(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=bytearray(b"x"))
        ck.restore()
        saved = ck.save(3)
        self.assertFalse(saved.sealed)
        agent.seal()
        self.assertTrue(saved.sealed)
        self.assertFalse(saved.durable)
        ck.step(4)
        self.assertEqual([e["ev"] for e in agent.events()], ["attached", "restored", "copied", "step"])
        c = agent.client()
        self.assertEqual((c.step, c.copy_step, c.saves, c.pid), (4, 3, 1, os.getpid()))
        self.assertEqual(c.flags, A.FLAG_ATTACHED | A.FLAG_RESTORED)

    def test_the_first_save_finds_its_memory_there(self):
        agent = self.agent(state_bytes=9 << 20)
        ck = self.attach(agent)
        ck.track(s=bytearray(8 << 20))
        ck.restore()
        with mock.patch("holdfast._memory.populate", side_effect=AssertionError("touched in save")):
            self.assertTrue(ck.save(1))

    @contextlib.contextmanager
    def touched_slots(self, agent, wait=lambda: None):
        """The slots that clients touch in this block, in the end a set of all of them. Each touch waits first."""
        touched = set()

        def populate(_, at, length):
            wait()
            touched.add((at - A.META) // agent.stride)
            return True

        self.touches_end()
        with mock.patch("holdfast._memory.populate", side_effect=populate):
            yield touched
            self.touches_end()

    def touches_end(self):
        for t in threading.enumerate():
            if t.name == "holdfast-prefault":
                t.join(PATIENCE)

    def restored(self):
        """An agent of a second generation, whose ranks restore step 1."""
        agent = self.agent(state_bytes=9 << 20)
        ck = self.attach(agent)
        ck.track(s=bytearray(8 << 20))
        self.assertTrue(ck.save(1))
        agent.seal()
        return self.next_generation(ck, agent, 1)

    def test_a_restored_process_touches_other_slots_after_its_first_save(self):
        agent = self.restored()
        with self.touched_slots(agent) as touched:
            ck = self.attach(agent)
            ck.track(s=bytearray(8 << 20))
            ck.restore()
            self.touches_end()
            self.assertEqual(len(touched), 1)
            self.assertTrue(ck.save(2))
        self.assertEqual(len(touched), A.SLOTS)

    def test_a_first_save_before_its_slot_is_touched(self):
        agent, go = self.restored(), threading.Event()
        main = threading.current_thread()
        with self.touched_slots(agent, wait=lambda: threading.current_thread() is main or go.wait(PATIENCE)) as touched:
            ck = self.attach(agent)
            ck.track(s=bytearray(8 << 20))
            ck.restore()
            self.assertTrue(ck.save(2))
            go.set()
        self.assertEqual(len(touched), A.SLOTS)

    def test_without_a_thread_to_be_had(self):
        agent = self.agent(state_bytes=9 << 20)
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            ck = self.attach(agent)
            ck.track(s=bytearray(8 << 20))
            ck.restore()
            self.assertTrue(ck.save(1))

    def test_durable_by_this_step_or_a_newer_one(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=bytearray(b"x"))
        saved = [ck.save(3)]
        agent.seal()
        saved.append(ck.save(5))
        agent.seal()
        refused = ck.save(5)
        for durable, want in ((2, [False, False]), (4, [True, False]), (5, [True, True])):
            agent.durable_step = durable
            agent.publish()
            self.assertEqual([s.durable for s in saved], want, durable)
        self.assertFalse(refused.durable)
        agent.generation += 1  # of another generation: other steps, perhaps with the same number
        agent.publish()
        self.assertEqual([s.durable for s in saved], [False, False])

    def test_nobody_listens(self):
        agent = self.agent()
        agent.socket.close()
        os.unlink(agent.socket_path)
        ck = self.attach(agent)
        ck.track(s=bytearray(b"x"))
        ck.restore()
        self.assertTrue(ck.save(1))
        self.assertEqual(agent.seal(), 1)

    def test_full_queue_does_not_block(self):
        agent = self.agent()
        ck = self.attach(agent)

        def tell():
            for step in range(1, 2000):
                ck.step(step)

        # The datagram's socket is never read: a call that waited for room would hang.
        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        teller.join(PATIENCE)
        self.assertFalse(teller.is_alive())
        self.assertEqual(agent.client().step, 1999)

    def test_without_a_grant_save_waits_once_and_then_skips(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=bytearray(b"x"))
        ck.restore()
        with self.quiet():
            self.assertTrue(ck.save(1))  # no step is sealed from here on
            begin = time.monotonic()
            with mock.patch.object(_client.time, "sleep", wraps=time.sleep) as sleep:
                self.assertFalse(ck.save(2))
                self.assertGreaterEqual(time.monotonic() - begin, _client._SAVE_WAIT)
                self.assertGreater(sleep.call_count, 0)
                sleep.reset_mock()
                for step in range(3, 20):
                    self.assertFalse(ck.save(step))
                self.assertEqual(sleep.call_count, 0)
        self.assertEqual(agent.client().skipped, 18)
        agent.seal()
        self.assertTrue(ck.save(20))

    def test_another_generations_grant_is_not_ours(self):
        agent = self.agent()
        env = agent.environment()
        agent.generation = 2
        agent.open_grant()
        ck = self.attach(environment=env)
        ck.track(s=bytearray(b"x"))
        with self.quiet(), mock.patch.object(_client, "_SAVE_WAIT", 0.01):
            self.assertFalse(ck.save(1))

    def test_too_large_is_said_once_and_counted(self):
        agent = self.agent(state_bytes=4096)
        ck = self.attach(agent)
        ck.track(s=bytearray(3 << 20))
        ck.restore()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            for step in (1, 2, 3):
                self.assertFalse(ck.save(step))
        lines = said.getvalue().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("holdfast.dev/state-size to 4Mi or more", lines[0])
        c = agent.client()
        self.assertEqual((c.refused, c.saves, c.step), (3, 0, 3))
        self.assertGreater(c.needed, 3 << 20)
        self.assertLess(c.needed, (3 << 20) + 8192)

    def test_exactly_full(self):
        agent = self.agent(state_bytes=4096)
        ck = self.attach(agent)
        state = bytearray(100)
        ck.track(s=state)
        needed = ck._packer.plan(ck._flatten())[1]
        state.extend(bytes((4096 - needed) // 64 * 64))
        ck._last_copied = 0
        while ck._packer.plan(ck._flatten())[1] < 4096:
            state.append(1)
        if ck._packer.plan(ck._flatten())[1] == 4096:
            self.assertTrue(ck.save(1))
        state.extend(bytes(64))
        with self.quiet():
            self.assertFalse(ck.save(2))

    def test_what_cannot_be_kept_does_not_stop_training(self):
        agent = self.agent()
        ck = self.attach(agent)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            ck.track(s={"f": lambda: 0})
            self.assertFalse(ck.save(1))
            self.assertFalse(ck.save(2))
        self.assertEqual(said.getvalue().count("s['f']"), 1, said.getvalue())
        self.assertEqual(agent.client().refused, 2)

    def test_a_state_dict_that_raises_does_not_stop_training(self):
        agent = self.agent()
        ck = self.attach(agent)
        broken = Holder()
        broken.state_dict = lambda: 1 / 0
        ck.track(s=broken)
        with self.quiet():
            self.assertFalse(ck.save(1))

    def test_steps_must_rise(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        self.assertTrue(ck.save(5))
        agent.seal()
        with self.quiet():
            self.assertFalse(ck.save(5))
        for bad in (0, -1, "7", 1.5):
            with self.assertRaises(ValueError):
                ck.save(bad)

    def test_a_child_process_does_not_save(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(s=bytearray(1))
        pid = os.fork()
        if pid == 0:
            ck.step(9)
            os._exit(0 if not ck.save(9) else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(agent.client().step, 0)

    def test_a_child_process_restores_nothing(self):
        agent = self.agent()
        ck = self.attach(agent)
        state = bytearray(b"one")
        ck.track(s=state)
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        with mock.patch("holdfast._client._attached", None), mock.patch.dict(os.environ, agent.environment()):
            ck = holdfast.attach()
            self.addCleanup(self.release, ck)
            ck.track(s=state)
            ck.restore()
            ck.step(5)
            state[:] = b"two"
            before = agent.client()
            agent.events()
            pid = os.fork()
            if pid == 0:  # attach works, too: the arena belongs to the parent, which is no error in the child
                try:
                    same = holdfast.attach().restore() == 1 and state == b"two"
                except BaseException:
                    same = False
                os._exit(0 if same else 1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual((agent.client(), agent.events()), (before, []))

    def test_random_states(self):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(rng=True)
        random.seed(3)
        ck.restore()
        self.assertTrue(ck.save(1))
        want = [random.random() for _ in range(3)]
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        ck.track(rng=True)
        random.seed(99)
        ck.restore()
        self.assertEqual([random.random() for _ in range(3)], want)

    def test_layout_follows_a_changed_shape(self):
        agent = self.agent()
        ck = self.attach(agent)
        state = {"a": bytearray(b"one")}
        ck.track(s=state)
        self.assertTrue(ck.save(1))
        agent.seal()
        state["b"] = bytearray(b"longer than before")
        del state["a"]
        self.assertTrue(ck.save(2))
        agent.seal()
        agent = self.next_generation(ck, agent, 2)
        ck = self.attach(agent)
        back = {}
        ck.track(s=back)
        self.assertEqual(ck.restore(), 2)
        self.assertEqual(back, {"b": bytearray(b"longer than before")})

    def test_numpy(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("NUMPY IS MISSING: numpy arrays are not tested here")
        agent = self.agent()
        ck = self.attach(agent)
        w = np.arange(12, dtype="f4").reshape(3, 4)
        state = {"w": w, "t": w.T.copy(order="F"), "zero": np.zeros((0, 3)), "scalar": np.array(2.5), "bool": np.array([True]),
                 "generic": np.float64(1.25), "objects": np.array([None, "x"], dtype=object)}  # fmt: skip
        ck.track(s=state, rng=True)
        self.assertTrue(ck.save(1))
        draws = np.random.random(4)
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        mine = np.zeros((3, 4), dtype="f4")
        back = {"w": mine}
        ck.track(s=back, rng=True)
        ck.restore()
        self.assertIs(back["w"], mine)
        for k in ("w", "t", "zero", "scalar", "bool", "objects"):
            np.testing.assert_array_equal(back[k], state[k])
            self.assertEqual(back[k].dtype, state[k].dtype)
        self.assertIs(type(back["generic"]), np.float64)
        np.testing.assert_array_equal(np.random.random(4), draws)
        mine[:] = 7  # no part of it is the arena's memory
        slot, header = ck._arena.find(1)
        self.assertEqual(A.crc32c(agent.data(slot, header.length)), header.crc)


if __name__ == "__main__":
    unittest.main()
