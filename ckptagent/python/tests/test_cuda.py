"""Copies from a real device: CUDA behaves like the fake in test_device."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None

HERE = torch is not None and torch.cuda.is_available()
if torch is not None:
    from holdfast import _overlap
    from holdfast._state import Unpacker, assign

    from .fakeagent import FakeAgent
    from .overlapping import ASKED, STATE_BYTES, Net, OverlapCase, _same, _snapshot
else:
    OverlapCase = unittest.TestCase

LONG = 1 << 31  # cycles, a second or so


class CudaCase(OverlapCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")  # in memory, as an agent's arena: a driver registers no memory of a disk's file
        self.addCleanup(shutil.rmtree, self.folder)

    def begin(self, net=None, optimizer=None, environment=None, **tracked):
        net = (net or Net()).cuda()
        return super().begin(net, optimizer or torch.optim.AdamW(net.parameters()), environment, **tracked)

    def backward(self):
        self.optimizer.zero_grad()
        self.net(torch.randn(4, 512, device="cuda")).square().mean().backward()

    def release(self, ck):
        """A process has one arena. Here another may be mapped at the same address, and must not count as registered."""
        super().release(ck)
        self.registered(ck)
        self.unregister(ck._devices._lib, [at for at, _, _ in ck._slots()])

    def unregister(self, lib, places):
        for at in places if lib is not None else ():
            lib._cleared(lib._lib.cudaHostUnregister(ctypes.c_void_p(at)))

    def overlapping(self):
        self.begin()
        self.train()
        self.registered()
        self.assertKept()
        return super().overlapping()

    def registered(self, ck=None):
        thread = (ck or self.ck)._devices._registering
        if thread is not None:
            thread.join()

    def assertKept(self):
        """Checks that the newest save is sealed and equals the state."""
        self.land()
        client = self.fake.client()
        step = self.seal()
        self.assertIsNotNone(step, self.record())
        if self.torn:
            state = Unpacker(self.ck._arena.map, self.ck._arena.data_offset(client.slot), client.length)
            self.fail("step %d is not what it was: %s" % (step, [n for n, was in self.was[step].items() if not _same(state.value(n), was)]))


@unittest.skipUnless(HERE, "there is no CUDA device here")
class Cuda(CudaCase):
    def test_awkward_tensors(self):
        for registered in ("0", "1"):
            with self.subTest(registered=registered):
                z = torch.randn(300, 400, dtype=torch.complex64, device="cuda")
                self.begin(
                    environment={"HOLDFAST_REGISTER": registered}, conj=[z.conj(), z.conj().imag], turned=torch.randn(300, 500, device="cuda").t(), strided=torch.randn(300, 500, device="cuda")[:, ::3],
                    small=[torch.tensor(3.0, device="cuda"), torch.empty(0, 4, device="cuda")], half=torch.randn(1000, 700, device="cuda").bfloat16(),
                    eight=torch.randn(1000, 700, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8), here=torch.randn(1000, 300),
                )  # fmt: skip
                for _ in range(5):
                    self.train()
                    self.assertKept()
                    self.registered()
                for was, zero in zip(self.tracked["conj"], (torch.zeros_like(z).conj(), torch.zeros_like(z).conj().imag)):
                    self.assertTrue(torch.equal(assign(zero, was.cpu()), was))
                self.assertEqual(self.ck._devices._on, registered == "1")

    def test_a_save_is_of_its_moment_whatever_the_queue_holds(self):
        """Work queued by the script before the copy runs before it, later work runs after it."""
        self.begin()
        for _ in range(10):
            self.step()
            torch.cuda._sleep(LONG // 20)
            with torch.no_grad():
                self.net.a.weight.add_(1)
            self.save()
            self.assertKept()

    def test_saves_overlap_and_none_is_dropped(self):
        self.overlapping()
        for _ in range(60):
            self.train()
            self.land()
            self.assertKept()
        self.assertGreater(self.record().overlapped, 50)
        self.assertEqual((self.record().dropped, self.record().reason), (0, 0))

    def test_graphs_are_captured_while_memory_is_registered(self):
        self.begin()
        slots = [torch.empty(1 << 30, dtype=torch.uint8) for _ in range(4)]
        devices = self.ck._devices
        devices.register([self.net.a.weight], lambda: [(s.data_ptr(), s.nbytes, lambda s=s: bool(s.fill_(1) is s)) for s in slots])
        captured, x = 0, torch.zeros(8, device="cuda")
        while devices._registering.is_alive():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x + 1
            graph.replay()
            captured += 1
        self.addCleanup(self.unregister, devices._lib, [s.data_ptr() for s in slots])
        self.assertGreater(captured, 1)
        self.assertEqual(y.sum().item(), 8)
        self.train()
        self.assertKept()

    def script(self, text, **environment):
        head = """
            import os, signal, sys, time, torch, holdfast
            torch.manual_seed(1)
            net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
            optimizer = torch.optim.AdamW(net.parameters())
            ck = holdfast.attach()
            ck.track(net=net, optimizer=optimizer)
            at = ck.restore()
            def step():
                optimizer.zero_grad(); net(torch.ones(4, 512, device="cuda")).square().mean().backward(); optimizer.step()
            def total():
                return sum(p.double().sum().item() for p in net.parameters())
        """
        env = {**os.environ, **self.fake.environment(), **ASKED, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        return subprocess.Popen([sys.executable, "-u", "-c", textwrap.dedent(head) + text], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def serve(self, process):
        """Seals announced copies until the process ends."""
        while process.poll() is None:
            self.fake.seal()
            time.sleep(0.002)
        return process.communicate()

    training = """
for at in range(at + 1, at + 13):
    step()
    print(at, total(), flush=True)
    while not ck.save(at): time.sleep(0.01)
"""

    def test_a_killed_process_leaves_whole_steps_and_another_restores_them(self):
        self.fake = self.agent(state_bytes=STATE_BYTES * 2)
        for _ in range(2):
            was = self.fake.restore_step
            p = self.script(self.training + "\nstep()\nprint(at + 1, total())\ntorch.cuda._sleep(%d)\nck.save(at + 1)\nos.kill(os.getpid(), signal.SIGKILL)" % (LONG // 4))
            out, errors = self.serve(p)
            self.assertEqual(p.returncode, -signal.SIGKILL, errors)
            self.fake.seal()
            totals = dict(line.split() for line in out.splitlines())
            self.assertGreater(self.fake.common_step, was)
            self.fake = self.next()
            p = self.script("print(at, total())")
            out, errors = self.serve(p)
            self.assertEqual(p.returncode, 0, errors)
            self.assertEqual(out.split(), [str(self.fake.restore_step), totals[str(self.fake.restore_step)]])
            self.fake = self.next(self.fake.restore_step)

    def next(self, step=None):
        """The agent of the next generation."""
        old = self.fake
        old.close()
        after = FakeAgent(old.folder, rank=old.rank, state_bytes=old.state_bytes, generation=old.generation + 1, restore_step=step or old.common_step)
        after.open_grant()
        self.addCleanup(after.close)
        return after

    def test_a_process_ends_while_copies_wait_for_the_device(self):
        self.fake = self.agent(state_bytes=STATE_BYTES * 2)
        p = self.script(self.training + "\ntorch.cuda._sleep(%d)\nck.save(at + 1)\nprint('ends', time.monotonic())" % LONG)
        out, errors = self.serve(p)
        self.assertEqual(p.returncode, 0, errors)
        self.assertNotIn("Traceback", errors)
        self.assertLess(time.monotonic() - float(out.split()[-1]), 30)

    def test_a_process_ends_while_memory_is_registered(self):
        self.fake = self.agent(state_bytes=4 << 30)
        p = self.script("step()\nck.save(1)\nprint('ends', time.monotonic())")
        out, errors = self.serve(p)
        self.assertEqual(p.returncode, 0, errors)
        self.assertNotIn("Traceback", errors)
        self.assertLess(time.monotonic() - float(out.split()[-1]), 30)


class Wide(torch.nn.Sequential if HERE else object):
    """Large enough that a write can hit its copy: some 4 ms with registered memory."""

    def __init__(self):
        super().__init__(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)))


@unittest.skipUnless(HERE, "there is no CUDA device here")
class Writers(CudaCase):
    state_bytes = 208 << 20

    def begin(self):
        return super().begin(Wide())

    def backward(self):
        self.optimizer.zero_grad()
        self.net(torch.ones(4, 2048, device="cuda")).square().mean().backward()

    def save(self, **options):
        """Reads the state before the write: a later read would delay the writer."""
        self.at += 1
        self.was[self.at] = {name: _snapshot(v) for name, v in self.tracked.items()}
        return self.ck.save(self.at, **options)

    def flight(self):
        """Trains until the newest save is copied beside training."""
        for _ in range(8):
            self.step()
            torch.cuda.synchronize()
            self.save()
            flight = self.ck._overlap._flight
            if flight is not None:
                return flight
            self.assertKept()
        raise AssertionError("saves do not overlap: %r" % (self.record(),))

    def test_a_writer_costs_a_save_and_tears_none(self):
        """Whether the write comes before the copy, during it or after it; by the script's stream, by another or by a graph."""
        self.overlapping()
        other, graph, weight = torch.cuda.Stream(), torch.cuda.CUDAGraph(), self.net[2].weight
        torch.cuda.synchronize()
        with torch.cuda.graph(graph), torch.no_grad():
            weight.data[7, 7] += 1
        outcomes = {}
        with self.quiet(), mock.patch.object(_overlap, "MOST_UNEQUAL", 1 << 30):
            for how in ("data", "stream", "graph"):
                for wait in (0, 0.001, 0.002, 0.003, 0.05):
                    flight, before = self.flight(), self.record().dropped
                    time.sleep(wait)
                    if how == "data":
                        weight.data[7, 7] += 1
                    elif how == "stream":
                        with torch.cuda.stream(other):
                            weight.data[7, 7] += 1
                    else:
                        graph.replay()
                    self.step()
                    kept = self.record().dropped == before
                    self.assertEqual(kept, flight.announced)
                    if kept:
                        self.assertKept()
                    outcomes[how, wait] = kept
        print(outcomes, file=sys.stderr)
        self.assertEqual(set(outcomes.values()), {True, False})


if __name__ == "__main__":
    unittest.main()
