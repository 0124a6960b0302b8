"""Tests copies by several threads: they copy every byte and no other byte, and no thread still copies when the call returns."""

import ctypes
import random
import threading
import unittest
from unittest import mock

from holdfast import _copy


def address(b):
    return ctypes.addressof(ctypes.c_char.from_buffer(b))


class Pools(unittest.TestCase):
    def setUp(self):
        piece = mock.patch.object(_copy, "PIECE", 1000)
        piece.start()
        self.addCleanup(piece.stop)

    def copied(self, pool):
        """Copies of odd lengths, with gaps between them that must stay unchanged."""
        draw = random.Random(3)
        lengths = [1, 999, 1000, 1001, 2000, 54321]
        sources = [bytearray(draw.randbytes(n)) for n in lengths]
        target = bytearray(b"\xa5") * (sum(lengths) + 16 * len(lengths))
        moves, at, want = [], 0, bytearray(target)
        for source in sources:
            moves.append((address(target) + at, address(source), len(source)))
            want[at : at + len(source)] = source
            at += len(source) + 16
        pool.copy(moves)
        self.assertEqual(target, want)

    def test_every_byte_and_no_other(self):
        for threads in (1, 2, 4):
            pool = _copy.Pool(threads)
            for _ in range(3):  # the threads wait for the next copy
                self.copied(pool)

    def test_alone_where_no_thread_can_be_had(self):
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.copied(_copy.Pool(4))

    def test_one_piece_needs_no_thread(self):
        pool, source, target = _copy.Pool(4), bytearray(b"abc"), bytearray(3)
        pool.copy([(address(target), address(source), 3)])
        self.assertEqual((target, pool._helpers), (source, None))

    def test_an_interrupted_copy_leaves_nobody_at_it(self):
        """Then the slot stays granted, and the next save may write it."""
        pool, caller, gate, ended = _copy.Pool(3), threading.current_thread(), threading.Event(), []

        def take(pieces, turn, move):
            if threading.current_thread() is caller:
                threading.Timer(0.05, gate.set).start()
                raise KeyboardInterrupt
            gate.wait(10)
            ended.append(len(pieces))

        source, target = bytearray(9000), bytearray(9000)
        with mock.patch.object(_copy, "_take", take), self.assertRaises(KeyboardInterrupt):
            pool.copy([(address(target), address(source), 9000)])
        self.assertEqual(ended, [0, 0])  # both have ended, and no piece was left to begin
        self.copied(pool)


if __name__ == "__main__":
    unittest.main()
