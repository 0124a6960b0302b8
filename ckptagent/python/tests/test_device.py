"""Copies from devices, of which there is none here: torch.cuda is pretended, and what is asked of a stream is done no sooner
than somebody waits for it. Whatever does not wait finds nothing copied."""

import contextlib
import sys
import threading
import unittest
from unittest import mock

try:
    import torch
    import torch._dynamo  # by itself it comes with the first step of an optimizer, and looks at what is pretended here
except ImportError:
    torch = None

from holdfast import _device, _overlap

if torch is not None:
    from .overlapping import TIMEOUT, Net, OverlapCase
else:
    OverlapCase = unittest.TestCase
    print("TORCH IS MISSING: copies from devices are not tested here", file=sys.stderr)

NO_STREAM = object()


class Stream:
    """Work is done in order, once somebody waits for it and the gate is open."""

    def __init__(self, device=None):
        self.device = torch.device("cuda", 0)
        self.waited_for, self.copies, self._work, self._lock = [], 0, [], threading.Lock()
        self.gate = threading.Event()
        self.gate.set()

    def wait_stream(self, other):
        self.waited_for.append(other)

    def ask(self, what):
        self._work.append(what)

    def synchronize(self):
        if not self.gate.wait(TIMEOUT):
            raise AssertionError("nobody opens the gate")
        with self._lock:
            while self._work:
                self._work.pop(0)()


class Later:
    """A tensor of which nothing is known before its stream has come so far."""

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
        return self._value


class Lib:
    """The CUDA runtime."""

    def __init__(self, error=0):
        self.error, self.asked, self.over = error, [], threading.Event()

    def enter(self, device):
        self.asked.append(("enter", device))
        return 0

    def register(self, at, nbytes):
        self.asked.append((at, nbytes))
        if self.error or len(self.asked) == 4:
            self.over.set()
        return self.error


class DeviceCase(OverlapCase):
    def setUp(self):
        super().setUp()
        self.main, self.sides, self.now = Stream(), [], NO_STREAM
        self.capturing, self.lib = False, Lib()
        copy_, digest = torch.Tensor.copy_, _device.digest

        def make(device=None):
            self.sides.append(Stream(device))
            return self.sides[-1]

        @contextlib.contextmanager
        def stream(which):
            outer, self.now = self.now, which
            try:
                yield
            finally:
                self.now = outer

        def copied(to, source, non_blocking=False):
            if not non_blocking:
                return copy_(to, source)
            side = self.now
            self.assertIn(side, self.sides, "a copy that waits for nobody, on the script's own stream")
            self.assertIs(side.waited_for[-1], self.main)
            side.copies += 1
            side.ask(lambda: copy_(to, source))
            return to

        def later(module, tensors):
            if self.now is NO_STREAM:
                return digest(module, tensors)
            return Later(self.now, lambda: digest(module, tensors))

        for target, name, value in (
            (torch.cuda, "is_initialized", lambda: True), (torch.cuda, "current_device", lambda: 0), (torch.cuda, "Stream", make),
            (torch.cuda, "current_stream", lambda device=None: self.main), (torch.cuda, "stream", stream), (torch.cuda, "device", lambda device: contextlib.nullcontext()),
            (torch.cuda, "is_current_stream_capturing", lambda: self.capturing), (torch.Tensor, "copy_", copied),
            (_device, "digest", later), (_device, "runtime", lambda: self.lib), (_device, "is_on_one", lambda t: t.nbytes >= 1 << 16),
        ):  # fmt: skip
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def kept(self):
        """The newest save is sealed; what it holds is what the state was."""
        before = len(self.torn)
        step = self.seal()
        return step is not None and len(self.torn) == before


@unittest.skipIf(torch is None, "torch is not installed")
class Saves(DeviceCase):
    def test_a_save_has_waited_for_its_copies(self):
        self.begin()
        self.train()
        self.assertTrue(self.kept())
        self.assertEqual(len(self.sides), 1)
        self.assertGreater(self.sides[0].copies, 4)

    def test_a_copy_that_the_device_refuses_is_made_without_it(self):
        self.begin()
        with mock.patch.object(_device.Devices, "_copy", side_effect=RuntimeError("no such stream")), self.quiet() as said:
            self.train(2)
        self.assertTrue(self.kept())
        self.assertEqual(said.getvalue().count("no such stream"), 1)
        self.train()
        self.assertTrue(self.kept())

    def test_each_slot_is_registered_once_beside_training(self):
        self.begin()
        self.train()
        self.seal()
        self.train()
        self.assertTrue(self.lib.over.wait(TIMEOUT))
        arena = self.ck._arena
        self.assertEqual(self.lib.asked[0], ("enter", 0))
        self.assertEqual(sorted(self.lib.asked[1:4]), sorted((arena.address(i), arena.header.stride) for i in range(arena.slots)))
        self.assertEqual(len([a for a in self.lib.asked if a[0] != "enter"]), 3)

    def test_memory_that_is_not_registered_is_said_once(self):
        self.lib = Lib(error=1)
        said = []
        with mock.patch.object(_device.Devices, "__init__", _saying(said)):
            self.begin()
        self.train()
        self.assertTrue(self.lib.over.wait(TIMEOUT))
        self.assertTrue(self.kept())
        self.train()
        self.assertTrue(self.kept())
        self.assertEqual(len([line for line in said if "CUDA error 1" in line]), 1, said)


def _saying(said):
    init = _device.Devices.__init__
    return lambda devices, say: init(devices, said.append)


@unittest.skipIf(torch is None, "torch is not installed")
class Aside(DeviceCase):
    def test_saves_overlap_and_none_is_torn(self):
        self.begin().overlapping()
        for _ in range(20):
            self.train()
            self.land()
            self.assertTrue(self.kept())
        self.assertGreater(self.record().overlapped, 15)
        self.assertEqual(self.record().dropped, 0)

    def test_save_does_not_wait_for_the_copy_and_the_optimizer_does(self):
        self.begin().overlapping()
        self.sides[0].gate.clear()
        saved = self.save()
        self.assertTrue(saved)
        self.assertEqual(self.record().copy_step, self.at - 1)  # nothing announced
        stepped = threading.Event()
        thread = threading.Thread(target=lambda: (self.step(), stepped.set()))
        thread.start()
        self.assertFalse(stepped.wait(0.2))
        self.sides[0].gate.set()
        self.assertTrue(stepped.wait(TIMEOUT))
        thread.join()
        self.assertTrue(self.kept())

    def test_a_write_past_the_counters_before_the_copy_drops_it(self):
        self.begin().overlapping()
        self.sides[0].gate.clear()
        self.save()
        self.net.a.weight.data[7, 7] += 1
        self.sides[0].gate.set()
        self.step()
        self.assertEqual(self.record().dropped, 1)
        self.assertEqual(self.record().copy_step, self.at - 1)

    def test_a_write_after_the_second_reading_harms_nothing(self):
        self.begin().overlapping()
        self.save()
        self.land()
        self.net.a.weight.data[7, 7] += 1
        self.assertTrue(self.kept())

    def test_a_proof_sees_one_number(self):
        self.begin()
        for _ in range(8):
            self.step()
            proof = self.save() and self.ck._overlap._proof
            self.seal()
            if proof:
                break
        self.assertTrue(proof._away)
        with torch.no_grad():
            self.net.a.weight.data[3, 3] += 1
        self.assertIsNotNone(proof.work())
        self.assertFalse(proof.unchanged())
        self.step()
        self.assertEqual(proof.trust._row, 1)

    def test_of_a_captured_step_nothing_is_known(self):
        self.begin()
        for _ in range(8):
            self.step()
            proof = self.save() and self.ck._overlap._proof
            self.seal()
            if proof:
                break
        self.assertTrue(proof.unchanged())
        self.capturing = True
        self.assertFalse(proof.unchanged())

    def test_without_a_runtime_saves_block(self):
        self.lib = None
        self.begin()
        for _ in range(6):
            self.train()
            self.assertTrue(self.kept())
        self.assertEqual(self.record().overlapped, 0)

    def test_a_copy_aside_that_cannot_begin_is_made_here(self):
        for where in ("memory", "device"):
            with self.subTest(where), mock.patch.object(_device, "is_on_one", lambda t: where == "device" and t.nbytes >= 1 << 16):
                self.begin().overlapping()
                with mock.patch.object(_overlap.Begun, "__init__", side_effect=RuntimeError("no room")), self.quiet() as said:
                    self.save()
                self.assertIn("no room", said.getvalue())
                self.assertEqual(self.record().copy_step, self.at)
                self.assertTrue(self.kept())

    def test_memory_and_devices_in_one_state(self):
        with mock.patch.object(_device, "is_on_one", lambda t: t.dim() == 2 and t.nbytes >= _overlap.BIG and t.data_ptr() == self.net.a.weight.data_ptr()):
            self.begin(Net()).overlapping()
            copies = self.sides[0].copies
            for _ in range(3):
                self.train()
                self.land()
                self.assertTrue(self.kept())
            self.assertEqual(self.sides[0].copies, copies + 3)
            self.step()
            self.sides[0].gate.clear()
            self.save()
            self.net.b.weight.data += 1  # whether before its copy or behind it
            self.sides[0].gate.set()
            self.step()
            self.assertEqual(self.record().dropped, 1)


@unittest.skipIf(torch is None, "torch is not installed")
class Digests(unittest.TestCase):
    def differ(self, a, b):
        return not torch.equal(_device.digest(torch, [a]), _device.digest(torch, [b]))

    def test_a_bit_anywhere_shows(self):
        for n in (1, 7, 8, 61 * 8, 64 * 8 + 3, 61 * 64 * 8 * 2 + 13):
            a = torch.randint(0, 256, (n,), dtype=torch.uint8)
            for i in {0, n // 2, n - 1}:
                b = a.clone()
                b[i] ^= 1 << (i % 8)
                self.assertTrue(self.differ(a, b), (n, i))
            self.assertFalse(self.differ(a, a.clone()))

    def test_rows_that_change_places_show(self):
        for row in (61 * 2, 64 * 2, 512, 4096):  # in numbers of 4 bytes
            a = torch.randn(130, row)
            b = a.clone()
            b[[3, 99]] = a[[99, 3]]
            self.assertTrue(self.differ(a, b), row)

    def test_every_type_and_shape(self):
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.float64, torch.int8):
            for shape in ((), (3,), (5, 7), (2, 3, 1000)):
                a = torch.zeros(shape, dtype=torch.uint8).to(dtype) if dtype != torch.bool else torch.zeros(shape, dtype=dtype)
                self.assertFalse(self.differ(a, a.clone()), (dtype, shape))


@unittest.skipIf(torch is None, "torch is not installed")
class Runtimes(unittest.TestCase):
    def test_the_real_one_answers_without_a_device(self):
        """Where this torch brings a runtime: by an error, here, for each call."""
        if torch.version.cuda is None:
            self.assertIsNone(_device.runtime())
            return
        if torch.cuda.is_available():
            self.skipTest("there is a device here")
        lib, page = _device.runtime(), torch.empty(1 << 20, dtype=torch.uint8)
        self.assertGreater(lib.enter(0), 0)
        self.assertGreater(lib.register(page.data_ptr(), page.nbytes), 0)


if __name__ == "__main__":
    unittest.main()
