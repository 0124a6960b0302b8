"""Tests copies from devices with a fake torch.cuda."""

import sys
import threading
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None

from holdfast import _device, _overlap

if torch is not None:
    from .overlapping import TIMEOUT, DeviceCase, Lib, Net
else:
    DeviceCase = unittest.TestCase
    print("TORCH IS MISSING: copies from devices are not tested here", file=sys.stderr)


@unittest.skipIf(torch is None, "torch is not installed")
class Saves(DeviceCase):
    def test_a_save_has_waited_for_its_copies(self):
        self.begin()
        self.train()
        self.assertTrue(self.kept())
        self.assertTrue(self.ck._devices._on)
        self.assertEqual(len(self.sides), 1)
        self.assertGreater(self.sides[0].copies, 4)

    def test_without_leave_torch_copies_by_itself(self):
        self.begin(environment={"HOLDFAST_REGISTER": "0"})
        for _ in range(6):
            self.train()
            self.assertTrue(self.kept())
        self.assertEqual((self.sides, self.lib.asked, self.record().overlapped), ([], [], 0))

    def test_a_copy_that_the_device_refuses_is_made_without_it(self):
        self.begin()
        copy = _device.Devices._copy

        def refused(devices, device, pairs):
            copy(devices, device, pairs[:2])
            raise RuntimeError("no such stream")

        with mock.patch.object(_device.Devices, "_copy", refused), self.quiet() as said:
            self.train()
        self.assertEqual(self.sides[0]._work, [])
        self.assertTrue(self.kept())
        self.assertEqual(said.getvalue().count("no such stream"), 1)
        self.train()
        self.assertTrue(self.kept())

    def test_conjugates_and_negatives(self):
        z = torch.randn(1 << 14, dtype=torch.complex64)
        self.begin(z=[z.conj(), z.conj().imag])
        self.assertTrue(self.tracked["z"][0].is_conj() and self.tracked["z"][1].is_neg())
        self.train()
        self.assertTrue(self.kept())
        self.assertTrue(self.ck._devices._on)

    def test_each_slot_is_registered_once_beside_training(self):
        self.begin()
        self.train()
        self.seal()
        self.train()
        self.assertTrue(self.lib.over.wait(TIMEOUT))
        arena = self.ck._arena
        self.assertEqual(self.lib.asked[0], ("enter", 0))
        self.assertEqual(sorted(self.lib.registered()), sorted((arena.address(i), arena.header.stride) for i in range(arena.slots)))

    def test_the_device_is_that_of_the_state(self):
        """Not of the calling thread: one that has set no device would start a context of every rank on the first device."""
        devices = _device.Devices(print)
        devices._on = True

        class There(torch.Tensor):
            device = torch.device("cuda", 3)

        with mock.patch.object(_device, "is_on_one", lambda t: t.device.type == "cuda"):
            devices.register([b"", torch.empty(1), torch.empty(1).as_subclass(There)], lambda: [(4096, 4096, lambda: True)])
        devices._registering.join(TIMEOUT)
        self.assertEqual(self.lib.asked, [("enter", 3), (4096, 4096)])

    def test_what_goes_wrong_costs_no_save(self):
        self.begin()
        with mock.patch.object(_device, "runtime", side_effect=UnicodeDecodeError("utf-8", b"", 0, 1, "no")), self.quiet() as said:
            self.train()
        self.assertTrue(self.kept())
        self.assertIn("UnicodeDecodeError", said.getvalue())

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
        self.assertEqual(self.lib.entered, {"holdfast-register", "holdfast-overlap"})  # no thread of the script

    def test_save_does_not_wait_for_the_copy_and_the_optimizer_does(self):
        self.begin().overlapping()
        self.hold()
        saved = self.save()
        self.assertTrue(saved)
        self.assertEqual(self.record().copy_step, self.at - 1)  # nothing announced
        stepped = threading.Event()
        thread = threading.Thread(target=lambda: (self.step(), stepped.set()))
        thread.start()
        self.assertFalse(stepped.wait(0.2))
        self.go()
        self.assertTrue(stepped.wait(TIMEOUT))
        thread.join()
        self.assertTrue(self.kept())

    def test_a_write_past_the_counters_before_the_copy_drops_it(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        self.net.a.weight.data[7, 7] += 1
        self.go()
        self.step()
        self.assertEqual(self.record().dropped, 1)
        self.assertEqual(self.record().copy_step, self.at - 1)

    def test_a_process_that_ends_waits_for_the_device_but_not_for_ever(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        with mock.patch.object(_device, "AT_END", 0.1):
            self.ck._overlap.end()
        self.assertEqual(self.record().copy_step, self.at - 1)
        self.go()

    def test_where_no_thread_can_start_saves_block(self):
        self.begin()
        with mock.patch.object(_overlap, "_fly", side_effect=RuntimeError("can't start new thread")), self.quiet() as said:
            for _ in range(7):
                self.train()
                self.assertTrue(self.kept())
        self.assertEqual((self.record().overlapped, self.record().dropped, self.lib.entered), (0, 0, {"holdfast-register"}))
        self.assertEqual(said.getvalue().count("copied inside save from now on"), 1)

    def test_a_write_after_the_second_reading_harms_nothing(self):
        self.begin().overlapping()
        self.save()
        self.land()
        self.net.a.weight.data[7, 7] += 1
        self.assertTrue(self.kept())

    def proof(self):
        """A save that is compared as the next step begins."""
        self.begin()
        for _ in range(8):
            self.step()
            proof = self.save() and self.ck._overlap._proof
            self.seal()
            if proof:
                return proof
        raise AssertionError("no save is a proof: %r" % (self.record(),))

    def test_a_proof_sees_one_number(self):
        proof = self.proof()
        with torch.no_grad():
            self.net.a.weight.data[3, 3] += 1
        self.assertFalse(proof.equal())
        self.step()
        self.assertEqual(proof.trust._row, 1)

    def test_of_a_captured_step_nothing_is_known(self):
        proof = self.proof()
        self.assertTrue(proof.equal())
        self.capturing = True
        self.assertFalse(proof.equal())

    def test_without_a_runtime_saves_block(self):
        self.lib = None
        self.begin()
        for _ in range(6):
            self.train()
            self.assertTrue(self.kept())
        self.assertEqual(self.record().overlapped, 0)

    def test_a_copy_aside_that_cannot_begin_is_made_here(self):
        self.begin().overlapping()
        with mock.patch.object(_device.Devices, "aside", side_effect=RuntimeError("no room")), self.quiet() as said:
            self.save()
        self.assertIn("no room", said.getvalue())
        self.assertEqual(self.record().copy_step, self.at)
        self.assertTrue(self.kept())

    def test_memory_and_devices_in_one_state(self):
        """State in this process's memory is copied inside save."""
        with mock.patch.object(_device, "is_on_one", lambda t: t.data_ptr() == self.net.a.weight.data_ptr()):
            self.begin(Net()).overlapping()
            copies = self.sides[0].copies
            for _ in range(3):
                self.train()
                self.land()
                self.assertTrue(self.kept())
            self.assertEqual(self.sides[0].copies, copies + 3)
            self.step()
            self.hold()
            self.save()
            self.net.b.weight.data += 1
            self.go()
            self.step()
            self.assertTrue(self.kept())

    def test_states_in_memory_are_copied_inside_save(self):
        with mock.patch.object(_device, "is_on_one", lambda t: False):
            self.begin()
            for _ in range(7):
                self.train()
                self.assertTrue(self.kept())
        self.assertEqual((self.record().overlapped, self.record().reason, self.sides, self.lib.asked), (0, 0, [], []))


@unittest.skipIf(torch is None, "torch is not installed")
class Digests(unittest.TestCase):
    def differ(self, a, b):
        return not torch.equal(_device.digest(torch, [a]), _device.digest(torch, [b]))

    def test_a_bit_anywhere_shows(self):
        for n in (1, 7, 8, 61 * 8, 64 * 8 + 3, 8191 * 8, 8191 * 8 * 3 + 13):
            a = torch.randint(0, 256, (n,), dtype=torch.uint8)
            for i in {0, n // 2, n - 1}:
                b = a.clone()
                b[i] ^= 1 << (i % 8)
                self.assertTrue(self.differ(a, b), (n, i))
            self.assertFalse(self.differ(a, a.clone()))

    def test_rows_that_change_places_show(self):
        for row in (500, 512, 4096):  # in 4-byte numbers
            a = torch.randn(300, row)
            for other in (4, 64, 67, 99, 244, 254):
                b = a.clone()
                b[[3, other]] = a[[other, 3]]
                self.assertTrue(self.differ(a, b), (row, other))

    def test_a_part_of_a_larger_tensor(self):
        whole = torch.randn(100_000)
        part = whole[4096:90_000]
        self.assertFalse(self.differ(part, part.clone()))
        whole[4096] += 1
        self.assertTrue(self.differ(part, torch.cat([part[:1] - 1, part[1:]])))

    def test_every_type_and_shape(self):
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.float64, torch.int8):
            for shape in ((), (3,), (5, 7), (2, 3, 1000)):
                a = torch.zeros(shape, dtype=torch.uint8).to(dtype) if dtype != torch.bool else torch.zeros(shape, dtype=dtype)
                self.assertFalse(self.differ(a, a.clone()), (dtype, shape))


@unittest.skipIf(torch is None, "torch is not installed")
class Runtimes(unittest.TestCase):
    def test_the_real_one_answers_without_a_device(self):
        """Where this torch ships a CUDA runtime; here each of its calls returns an error."""
        if torch.version.cuda is None:
            self.assertIsNone(_device.runtime())
            return
        if torch.cuda.is_available():
            self.skipTest("there is a device here")
        lib, page = _device.runtime(), torch.empty(1 << 20, dtype=torch.uint8)
        self.assertGreater(lib.enter(0), 0)
        self.assertGreater(lib.register(page.data_ptr(), page.nbytes), 0)

    def test_what_is_asked_of_it(self):
        """cudaHostRegisterPortable is 1, cudaStreamCaptureModeRelaxed 2: cuda_runtime_api.h."""
        asked = []
        names = ("cudaHostRegister", "cudaThreadExchangeStreamCaptureMode", "cudaSetDevice", "cudaGetLastError")
        lib = mock.Mock(**{name: mock.Mock(side_effect=lambda *a, name=name: asked.append((name, a)) or 0) for name in names})
        with mock.patch.object(_device.ctypes, "CDLL", lambda path: lib):
            it = _device.Runtime("libcudart.so.12")
        self.assertEqual((it.enter(5), it.register(4096, 8192)), (0, 0))
        self.assertEqual([name for name, _ in asked], ["cudaThreadExchangeStreamCaptureMode", "cudaSetDevice", "cudaHostRegister"])
        self.assertEqual(asked[0][1][0]._obj.value, 2)
        self.assertEqual([a for _, a in asked[1:]], [(5,), (4096, 8192, 1)])

    def test_an_error_of_ours_is_not_left_for_torch(self):
        lib = mock.Mock(cudaHostRegister=mock.Mock(return_value=712))
        with mock.patch.object(_device.ctypes, "CDLL", lambda path: lib):
            self.assertEqual(_device.Runtime("libcudart.so.13").register(4096, 8192), 712)
        lib.cudaGetLastError.assert_called_once_with()


if __name__ == "__main__":
    unittest.main()
