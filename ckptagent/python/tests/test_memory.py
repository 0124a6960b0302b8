"""Tests requests for huge pages: they keep all bytes, and the kernel gives the pages."""

import ctypes
import mmap
import os
import random
import tempfile
import unittest

from holdfast import _memory

SIZE, HUGE = 16 << 20, 2 << 20


def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def of_mapping(at, field):
    """A field, in bytes, of the mapping that holds an address."""
    inside = False
    with open("/proc/self/smaps") as f:
        for line in f:
            name, *values = line.split()
            if "-" in name and not name.endswith(":"):
                first, last = (int(x, 16) for x in name.split("-"))
                inside = first <= at < last
            elif inside and name == field + ":":
                return int(values[0]) << 10
    return 0


@unittest.skipUnless(os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"), "this kernel has no huge pages")
class HugePages(unittest.TestCase):
    def test_a_file_in_memory_moves_into_them_as_it_is(self):
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            data = random.Random(1).randbytes(SIZE)
            file.write(data)
            file.flush()
            memory = _memory.map_shared(file.fileno(), SIZE)
            for at in range(0, SIZE, 5 << 20):  # pieces that do not begin at a huge page
                _memory.collapse(memory, at, min(5 << 20, SIZE - at))
            self.assertEqual(bytes(memory), data)
            self.assertGreater(of_mapping(address(memory), "ShmemPmdMapped"), SIZE // 2)

    def test_neighbours_get_them_before_they_are_touched_and_others_do_not(self):
        memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        at = address(memory)
        apart = 8 << 20
        moves = [(at + i, 0, HUGE // 2 - 64) for i in range(64, apart, HUGE // 2)] + [(at + apart + HUGE, 0, 4096)]
        random.Random(2).shuffle(moves)
        _memory.in_huge_pages(moves)
        ctypes.memset(at, 7, apart)
        self.assertGreaterEqual(of_mapping(at + 4096, "AnonHugePages"), apart - 2 * HUGE)
        ctypes.memset(at + apart + 8192, 7, SIZE - apart - 8192)
        self.assertEqual(of_mapping(at + apart + 8192, "AnonHugePages"), 0)
