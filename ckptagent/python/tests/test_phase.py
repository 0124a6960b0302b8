"""Tests what a phase writes to the rank's page, and what it refuses."""

import binascii
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import _holdfast_page as pages
import holdfast

from .case import environment


def newest(raw):
    """What the agent reads: (name, lease, its end) of the newest whole record; None: no phase is open."""
    found, phase = 0, None
    for at in (pages.PHASES, pages.PHASES + pages.PHASE):
        record = raw[at : at + pages.PHASE]
        number, until, of, length, crc = (int.from_bytes(record[i : i + 8], "little") for i in (0, 8, 16, 24, pages.PHASE - 8))
        if number > found and crc == binascii.crc32(record[:-8]):
            found, phase = number, (record[32 : 32 + length].decode(), of, until) if length else None
    return phase


class Phases(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.path = os.path.join(folder, "page")
        with open(self.path, "wb") as f:
            f.write(b"\xff" * pages.BYTES)  # what an earlier process left
        self.enter()
        with mock.patch.dict(os.environ, {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}, clear=True):
            self.ck = holdfast.Checkpoint()

    def enter(self):
        patch = mock.patch.object(pages, "current", None)
        patch.start()
        self.addCleanup(patch.stop)
        self.page = pages.enter(self.path)
        self.assertIs(pages.current, self.page)

    def shown(self):
        with open(self.path, "rb") as f:
            return newest(f.read(pages.NAMES))

    def name(self):
        phase = self.shown()
        return phase and phase[0]

    def test_a_block(self):
        self.assertIsNone(self.shown())
        before = time.monotonic_ns()
        with self.ck.phase("evaluation", up_to=1200):
            name, of, until = self.shown()
            self.assertEqual((name, of), ("evaluation", 1200 * 10**9))
            self.assertTrue(before + of <= until <= time.monotonic_ns() + of)
        self.assertIsNone(self.shown())

    def test_it_ends_with_an_error_of_the_block(self):
        with self.assertRaises(KeyError), self.ck.phase("evaluation", up_to=1):
            raise KeyError
        self.assertIsNone(self.shown())

    def test_the_lease_that_ends_last_counts(self):
        with self.ck.phase("evaluation", up_to=1200):
            outer = self.shown()
            with self.ck.phase("upload of the report", up_to=0.5):
                self.assertEqual(self.shown(), outer)
            with self.ck.phase("upload of all", up_to=1300):
                self.assertEqual(self.name(), "upload of all")
            self.assertEqual(self.shown(), outer)
        self.assertIsNone(self.shown())

    def test_closed_in_any_order_and_twice(self):
        outer, inner = self.ck.phase("outer", up_to=10), self.ck.phase("inner", up_to=20)
        outer.close()
        self.assertEqual(self.name(), "inner")
        inner.close()
        again = self.ck.phase("again", up_to=10)
        inner.close()
        self.assertEqual(self.name(), "again")
        again.close()
        self.assertIsNone(self.shown())

    def test_the_longest_name(self):
        name = "é" * 32
        with self.ck.phase(name, up_to=24 * 3600):
            self.assertEqual(self.name(), name)

    def test_a_torn_record_is_not_read(self):
        with self.ck.phase("evaluation", up_to=1200), self.ck.phase("inner", up_to=1300):
            at = pages.PHASES + pages.PHASE * (2 % 2)  # the second record
            self.page._memory[at + 8] ^= 1
            self.assertEqual(self.name(), "evaluation")

    def test_a_forked_child_writes_nothing(self):
        with self.ck.phase("evaluation", up_to=1200) as phase:
            pid = os.fork()
            if pid == 0:
                self.ck.phase("child", up_to=5)
                phase.close()
                os._exit(0)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(self.name(), "evaluation")

    def test_a_new_process_has_none(self):
        phase = self.ck.phase("evaluation", up_to=1200)
        self.addCleanup(phase.close)
        after = pages.Page(self.page._memory)
        self.assertIsNone(self.shown())
        after.phase(b"evaluation", 1, 1)
        self.assertEqual(self.name(), "evaluation")

    def test_without_an_agent(self):
        code = "import holdfast\nwith holdfast.attach().phase('evaluation', up_to=9) as p: p.close()\nprint('ran')"
        done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
        self.assertEqual((done.stdout, done.returncode), ("ran\n", 0), done.stderr)

    def test_refused(self):
        for name in ("", "é" * 33, "x" * 65, "two\nlines", "\x1b[2J", "\udc80", b"evaluation", None):
            with self.assertRaisesRegex(ValueError, r"^phase\(name=.*\): give it a name of 1 to 64 printable bytes"):
                self.ck.phase(name, up_to=10)
        for up_to in (0, -1, 24 * 3600 + 1, float("nan"), float("inf"), "20m", None, True):
            with self.assertRaisesRegex(ValueError, r"^phase\(up_to=.*\): give the longest time that the phase may take, in seconds: above 0, at most 86400"):
                self.ck.phase("evaluation", up_to=up_to)
        self.assertIsNone(self.shown())
        with self.assertRaises(TypeError):
            self.ck.phase("evaluation")


if __name__ == "__main__":
    unittest.main()
