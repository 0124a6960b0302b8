"""Writes a rank's page: a file that the rank's process maps, and from which the agent reads optimizer steps and imported
modules.

docs/architecture.md has the layout. Only one process writes a page, and each number only rises. So plain stores of eight
aligned bytes are enough, though Python has no store-release: if the agent reads an outdated number, its next read corrects
that.
"""

import fcntl
import mmap
import os
import sys
from _thread import allocate_lock

BYTES = 1 << 20
MAGIC = int.from_bytes(b"HFPAGE01", "little")
NAMES = 4096
_MAGIC, _GENERATION, _PID, _STEPS, _RESUMED, _LENGTH, _FLAGS, _SIGNAL, _START = range(9)
HOOK = 1


def enter(path):
    """The page of this process. None if the agent made none or another process of the rank writes to it."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if sys.byteorder != "little" or os.fstat(fd).st_size != BYTES:
            return None
        # Held as long as the mapping, which keeps the file open.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Page(mmap.mmap(fd, BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)


class Page:
    def __init__(self, memory):
        self._memory = memory
        self._numbers = memoryview(memory)[: 8 * 9].cast("Q")
        self._pid = os.getpid()
        self._at = NAMES
        self._steps = 0
        self._waiting, self._lock = [], allocate_lock()
        generation = os.environ.get("HOLDFAST_GENERATION", "")
        n = self._numbers
        n[_STEPS] = n[_RESUMED] = n[_LENGTH] = n[_FLAGS] = n[_SIGNAL] = n[_START] = 0
        n[_GENERATION] = int(generation) if generation.isdigit() else 0
        n[_PID] = self._pid
        n[_MAGIC] = MAGIC
        n[_FLAGS] = HOOK

    def mine(self):
        """False in a process that the rank has forked: the child shares the mapping and must not write."""
        return os.getpid() == self._pid

    def steps(self, count):
        """Reports how many optimizer steps this process has finished; a number that is not higher changes nothing."""
        if count > self._steps and self.mine():
            self._steps = self._numbers[_STEPS] = count

    def resumed(self, step):
        """Reports how many optimizer steps the restored state held; None: not known."""
        if self.mine():
            self._numbers[_RESUMED] = 0 if step is None else step + 1

    def armed(self, signal, start):
        """Reports the signal that makes this process, started at that tick, write its main thread's stack."""
        self._numbers[_START] = start
        self._numbers[_SIGNAL] = signal

    def name(self, name):
        """Appends a name. Threads import concurrently, and a signal handler may import during this call, so it never waits: the
        thread that holds the lock also writes the names that others queued."""
        if not self.mine():
            return
        self._waiting.append(name)
        while self._waiting and self._lock.acquire(False):
            try:
                while self._waiting:
                    self._write(self._waiting.pop(0))
            finally:
                self._lock.release()

    def _write(self, name):
        line = name.encode("utf-8", "surrogateescape") + b"\n"
        end = self._at + len(line)
        if end > BYTES or b"\n" in line[:-1] or b"\0" in line:
            return
        self._memory[self._at : end] = line
        self._at = end
        self._numbers[_LENGTH] = end - NAMES
