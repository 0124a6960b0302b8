"""Writes a rank's page: a file that the rank's process maps, and from which the agent reads optimizer steps, imported modules
and the phase that the script has open.

docs/architecture.md has the layout. Only one process writes a page, and each number only rises. So plain stores of eight
aligned bytes are enough, though Python has no store-release: if the agent reads an outdated number, its next read corrects
that. A phase has several numbers, so it is written to the older of two records, with a checksum.
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
PHASES, PHASE = 128, 128  # two records of that many bytes

current = None  # the page of this process, for the client


def enter(path):
    """The page of this process. None if the agent made none or another process of the rank writes to it."""
    global current
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if sys.byteorder != "little" or os.fstat(fd).st_size != BYTES:
            return None
        # Held as long as the mapping, which keeps the file open.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = Page(mmap.mmap(fd, BYTES))
        return current
    except OSError:
        return None
    finally:
        os.close(fd)


class Page:
    def __init__(self, memory):
        self._memory = memory
        self._numbers = memoryview(memory)[: 8 * 9].cast("Q")
        self._mine = True
        os.register_at_fork(after_in_child=self._forked)
        self._at = NAMES
        self._steps = 0
        self._waiting, self._lock = [], allocate_lock()
        self._phases = 0  # records written
        memory[PHASES : PHASES + 2 * PHASE] = bytes(2 * PHASE)
        generation = os.environ.get("HOLDFAST_GENERATION", "")
        n = self._numbers
        n[_STEPS] = n[_RESUMED] = n[_LENGTH] = n[_FLAGS] = n[_SIGNAL] = n[_START] = 0
        n[_GENERATION] = int(generation) if generation.isdigit() else 0
        n[_PID] = os.getpid()
        n[_MAGIC] = MAGIC
        n[_FLAGS] = HOOK

    def mine(self):
        """False in a process that the rank has forked: the child shares the mapping and must not write."""
        return self._mine  # no system call: a step asks for it

    def _forked(self):
        self._mine = False

    def steps(self, count):
        """Reports how many optimizer steps this process has finished; a number that is not higher changes nothing."""
        if count > self._steps and self._mine:
            self._steps = self._numbers[_STEPS] = count

    def resumed(self, step):
        """Reports how many optimizer steps the restored state held; None: not known."""
        if self.mine():
            self._numbers[_RESUMED] = 0 if step is None else step + 1

    def armed(self, signal, start):
        """Reports the signal that makes this process, started at that tick, write its main thread's stack."""
        self._numbers[_START] = start
        self._numbers[_SIGNAL] = signal

    def phase(self, name, of, until):
        """Reports the open phase whose lease ends last: its name in UTF-8, its lease, and when that runs out by
        time.monotonic_ns(); b"", 0, 0: none is open. The caller makes one call at a time."""
        if not self.mine():
            return
        import binascii

        self._phases += 1
        body = b"".join(n.to_bytes(8, "little") for n in (self._phases, until, of, len(name))) + name
        body = body.ljust(PHASE - 8, b"\0")
        at = PHASES + PHASE * (self._phases % 2)
        self._memory[at : at + PHASE] = body + binascii.crc32(body).to_bytes(8, "little")

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
