"""A training loop whose overlapped copies can be delayed, an agent that compares announced copies with the state when save
returned, and a fake torch.cuda. The fake runs the work of a stream only when a caller waits for the stream. So code that
fails to wait finds nothing copied."""

import contextlib
import threading
from unittest import mock

import torch
import torch._dynamo  # otherwise an optimizer's first step imports it, and it inspects the fake torch.cuda

from holdfast import _device, _sharded
from holdfast._state import Unpacker

from .case import ClientCase

STATE_BYTES = 12 << 20
TIMEOUT = 30


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)
        self.norm = torch.nn.BatchNorm1d(512)

    def forward(self, x):
        return self.norm(self.b(self.a(x)))


#: Enables copies beside training, from registered memory.
ASKED = {"HOLDFAST_OVERLAP": "1", "HOLDFAST_REGISTER": "1"}


class OverlapCase(ClientCase):
    state_bytes = STATE_BYTES

    def setUp(self):
        super().setUp()
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        self.begun = 0

    def release(self, ck):  # as at the end of a process: its hook goes, too
        if ck._overlap is not None:
            ck._overlap.settle()
            ck._overlap.watch.stop()
        super().release(ck)

    def begin(self, net=None, optimizer=None, environment=None, **tracked):
        """A loop before its first step."""
        if self.begun:
            self.release(self.ck)
        self.begun += 1
        torch.manual_seed(1)
        self.net = net or Net()
        self.optimizer = optimizer or torch.optim.AdamW(self.net.parameters())
        self.fake = self.agent(state_bytes=self.state_bytes, rank=self.begun)
        self.ck = self.attach(environment={**self.fake.environment(), **ASKED, **(environment or {})})
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
        """Steps with a save after each; calls between after each save. Seals and compares announced copies."""
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
        """Seals an announced copy, and records its step if it differs from the state when save returned."""
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


NO_STREAM = object()


class Stream:
    """Runs queued work in order, once a caller waits for it and the gate is open."""

    def __init__(self, current):
        self.device, self.current = torch.device("cuda", 0), current
        self.waited_for, self.copies, self._work, self._lock = [], 0, [], threading.Lock()
        self.gate = threading.Event()
        self.gate.set()

    def wait_stream(self, other):
        self.waited_for.append(other)

    def ask(self, what):
        self._work.append(what)

    def query(self):
        if self.gate.is_set():
            self.synchronize()
        return self.gate.is_set()

    def synchronize(self):
        if not self.gate.wait(TIMEOUT):
            raise AssertionError("nobody opens the gate")
        with self._lock:
            while self._work:
                self._work.pop(0)()


class Later:
    """A tensor without values until its stream has run the copy."""

    def __init__(self, stream, make):
        self._value = None
        stream.ask(lambda: setattr(self, "_value", make()))
        self._stream = stream

    def __eq__(self, other):
        return Later(self._stream, lambda: torch.equal(self._value, other))

    def all(self):
        return self

    def item(self):
        if self._value is None:
            raise AssertionError("read before its stream was waited for")
        if self._stream is not self._stream.current():
            raise AssertionError("read on another stream, which is waited for, too")
        return self._value


class Lib:
    """The CUDA runtime."""

    def __init__(self, error=0):
        self.error, self.asked, self.entered, self.over = error, [], set(), threading.Event()

    def enter(self, device):
        self.asked.append(("enter", device))
        self.entered.add(threading.current_thread().name)
        return 0

    def register(self, at, nbytes):
        self.asked.append((at, nbytes))
        if self.error or len(self.registered()) == 3:
            self.over.set()
        return self.error

    def registered(self):
        return [a for a in self.asked if a[0] != "enter"]


class DeviceCase(OverlapCase):
    def setUp(self):
        super().setUp()
        self.main, self.sides, self._now = Stream(None), [], threading.local()
        self.capturing, self.lib = False, Lib()
        copy_, digest = torch.Tensor.copy_, _device.digest

        def make(device=None):
            self.sides.append(Stream(self.now))
            return self.sides[-1]

        @contextlib.contextmanager
        def stream(which):
            outer, self._now.stream = self.now(), which
            try:
                yield
            finally:
                self._now.stream = outer

        def copied(to, source, non_blocking=False):
            if not non_blocking:
                return copy_(to, source)
            side = self.now()
            if source.is_conj() or source.is_neg():
                raise AssertionError("torch would resolve it in the view, before it is there")
            self.assertIn(side, self.sides, "a copy that waits for nobody, on the script's own stream")
            self.assertIs(side.waited_for[-1], self.main)
            side.copies += 1
            side.ask(lambda: copy_(to, source))
            return to

        def later(module, tensors):
            if self.now() is NO_STREAM:
                return digest(module, tensors)
            return Later(self.now(), lambda: digest(module, tensors))

        for target, name, value in (
            (torch.cuda, "is_initialized", lambda: True), (torch.cuda, "current_device", lambda: 0), (torch.cuda, "Stream", make),
            (torch.cuda, "current_stream", lambda device=None: self.main), (torch.cuda, "stream", stream), (torch.cuda, "device", lambda device: contextlib.nullcontext()),
            (torch.cuda, "is_current_stream_capturing", lambda: self.capturing), (torch.Tensor, "copy_", copied),
            (_device, "digest", later), (_device, "runtime", lambda: self.lib), (_device, "is_on_one", lambda t: t.nbytes >= 1 << 16),
        ):  # fmt: skip
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def now(self):
        return getattr(self._now, "stream", NO_STREAM)

    def kept(self):
        """Checks that the newest save is sealed and equals the state."""
        before = len(self.torn)
        step = self.seal()
        return step is not None and len(self.torn) == before

    def hold(self):
        """Holds all copies of the device until the gate opens."""
        for side in self.sides:
            side.gate.clear()

    def go(self):
        for side in self.sides:
            side.gate.set()

    def release(self, ck):
        self.go()
        super().release(ck)
