"""Tests requests for huge pages: they keep all bytes, and the kernel gives the pages."""

import ctypes
import mmap
import random
import tempfile
import unittest
from unittest import mock

from holdfast import _memory

SIZE, HUGE = 16 << 20, 2 << 20


def setting():
    """Where the kernel gives huge pages: always, madvise or never; "": it knows none."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as f:
            return f.read().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def of_mapping(at, field):
    """A field of the mapping that holds an address: bytes, or flags."""
    inside = False
    with open("/proc/self/smaps") as f:
        for line in f:
            name, *values = line.split()
            if "-" in name and not name.endswith(":"):
                first, last = (int(x, 16) for x in name.split("-"))
                inside = first <= at < last
            elif inside and name == field + ":":
                return values if field == "VmFlags" else int(values[0]) << 10
    return 0


@unittest.skipUnless(setting(), "this kernel has no huge pages")
class HugePages(unittest.TestCase):
    def counted(self, given):
        """Ends the test unless pages can be counted: what a trial has given shows whether the kernel has some, and gives them on request."""
        if setting() != "madvise" or not given:
            self.skipTest("the bytes are right; huge pages are on %s, and a trial has given %d bytes of them" % (setting(), given))

    def test_a_file_in_memory_moves_into_them_as_it_is(self):
        def moved(data):
            with tempfile.TemporaryFile(dir="/dev/shm") as file:
                file.write(data)
                file.flush()
                memory = _memory.map_shared(file.fileno(), len(data))
                for at in range(0, len(data), 5 << 20):  # pieces that do not begin at a huge page
                    _memory.collapse(memory, at, min(5 << 20, len(data) - at))
                self.assertEqual(bytes(memory), data)
                return of_mapping(address(memory), "ShmemPmdMapped")

        one, all = moved(bytes(HUGE)), moved(random.Random(1).randbytes(SIZE))
        self.counted(one)
        self.assertGreater(all, SIZE // 2)

    def requested(self, slow):
        """Bytes of huge pages of many small neighbours, after a copy to them; and of memory beside them. None of it is excluded from huge
        pages for good."""
        memory, apart = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), SIZE * 3 // 4
        at = address(memory)
        moves = [(at + i, 0, HUGE // 2 - 64) for i in range(64, apart, HUGE // 2)] + [(at + apart + HUGE, 0, 4096)]
        random.Random(2).shuffle(moves)
        with mock.patch.object(_memory, "_SLOW", slow):
            huge, source = _memory.HugePages(moves), bytearray(b"\7" * apart)
            for first in range(0, apart, HUGE):
                huge.copy(at + first, address(source) + first, HUGE)
        self.assertEqual(memory[:apart], source)
        ctypes.memset(at, 7, SIZE)
        for part in range(0, SIZE, HUGE):
            self.assertNotIn("nh", of_mapping(at + part, "VmFlags"))
        return of_mapping(at + HUGE, "AnonHugePages"), of_mapping(at + apart + 8192, "AnonHugePages")

    def trial(self):
        """Bytes of huge pages that one request gives."""
        memory = mmap.mmap(-1, 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(address(memory), 7, 2 * HUGE)
        return of_mapping(address(memory), "AnonHugePages")

    def test_neighbours_get_them_before_they_are_touched_and_others_do_not(self):
        mine, beside = self.requested(slow=60)
        self.counted(self.trial())
        self.assertGreaterEqual(mine, SIZE * 3 // 4 - 2 * HUGE)
        self.assertEqual(beside, 0)

    def test_a_kernel_that_is_slow_to_provide_them_is_not_asked_again(self):
        mine, beside = self.requested(slow=-1)
        self.counted(self.trial())
        self.assertLessEqual(mine, 2 * HUGE)
        self.assertEqual(beside, 0)
