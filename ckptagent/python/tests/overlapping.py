"""A training loop whose copies beside training can be stopped at a chosen piece, and an agent that compares what is
announced with what the state was as save returned."""

import threading
from unittest import mock

import torch

from holdfast import _copy, _overlap, _sharded
from holdfast._state import Unpacker

from .case import ClientCase

STATE_BYTES = 12 << 20
TIMEOUT = 30


class Stop:
    """Stands in for what is done with each piece, and stops before the nth one until it is let go."""

    def __init__(self, do, at):
        self._do, self._at, self._n, self._lock = do, at, 0, threading.Lock()
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, to, source, n):
        with self._lock:
            here, self._n = self._n == self._at, self._n + 1
        if here:
            self.reached.set()
            self.go.wait(TIMEOUT)
        return self._do(to, source, n)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)
        self.norm = torch.nn.BatchNorm1d(512)

    def forward(self, x):
        return self.norm(self.b(self.a(x)))


class OverlapCase(ClientCase):
    state_bytes = STATE_BYTES

    def setUp(self):
        super().setUp()
        piece = mock.patch.object(_copy, "PIECE", 128 << 10)
        piece.start()
        self.addCleanup(piece.stop)
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        self.stop, self.begun = None, 0

    def release(self, ck):  # of a process's end: its hook goes, too
        if ck._overlap is not None:
            if self.stop is not None:
                self.stop.go.set()
            ck._overlap.settle()
            ck._overlap.watch.stop()
        super().release(ck)

    def begin(self, net=None, optimizer=None, environment=None, **tracked):
        """A loop that is about to take its first step."""
        if self.begun:
            self.release(self.ck)
        self.begun += 1
        torch.manual_seed(1)
        self.net = net or Net()
        self.optimizer = optimizer or torch.optim.AdamW(self.net.parameters())
        self.fake = self.agent(state_bytes=self.state_bytes, rank=self.begun)
        self.ck = self.attach(environment={**self.fake.environment(), **(environment or {})})
        self.tracked = {"net": self.net, "optimizer": self.optimizer, **tracked}
        self.ck.track(**self.tracked)
        self.at, self.was, self.torn = 0, {}, []
        return self

    def step(self):
        self.backward()
        self.optimizer.step()

    def backward(self):
        self.optimizer.zero_grad()
        self.net(torch.randn(4, 512)).square().mean().backward()

    def save(self, **options):
        self.at += 1
        saved = self.ck.save(self.at, **options)
        self.was[self.at] = {name: _snapshot(v) for name, v in self.tracked.items()}
        return saved

    def train(self, steps=1, between=None):
        """Steps with a save after each; between is called after each save. What was announced is sealed and compared."""
        for _ in range(steps):
            self.step()
            saved = self.save()
            if between is not None:
                between()
        return saved

    def land(self):
        """Waits for a copy beside training, without a step."""
        flight = self.ck._overlap._flight
        if flight is not None:
            flight.over.wait(TIMEOUT)

    def seal(self):
        """Seals what is announced, and notes the step where it is not what the state was as save returned."""
        client = self.fake.client()
        step = self.fake.seal()
        if step is None:
            return None
        state = Unpacker(self.ck._arena.map, self.ck._arena.data_offset(client.slot), client.length)
        if not all(_same(state.value(name), was) for name, was in self.was[step].items()):
            self.torn.append(step)
        return step

    def overlapping(self):
        """Trains until saves overlap."""
        for _ in range(8):
            self.train()
            self.land()
            self.seal()
            if self.record().overlapped:
                self.step()
                return self
        raise AssertionError("saves do not overlap: %r" % (self.record(),))

    def stopped(self, do, at):
        """Has the next copy stop before that piece: of the copy ("copied") or of the second reading ("equal")."""
        self.stop = Stop(getattr(_overlap, "_" + do), at)
        patch = mock.patch.object(_overlap, "_" + do, self.stop)
        patch.start()
        self.stop.remove = patch.stop
        self.addCleanup(patch.stop)
        self.addCleanup(self.stop.go.set)
        return self.stop

    def record(self):
        return self.ck._record


def _snapshot(v):
    v = v.state_dict() if hasattr(v, "state_dict") else v
    if isinstance(v, torch.Tensor):
        return _sharded.local(v).detach().to("cpu", copy=True)
    if isinstance(v, dict):
        return {k: _snapshot(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [_snapshot(x) for x in v]
    return v


def _same(a, b):
    if isinstance(a, _sharded.Saved):
        a = a.local
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b
