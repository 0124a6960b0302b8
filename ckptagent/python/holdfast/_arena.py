"""The arena of one rank: records to values and back, and the mapping of the file.

docs/formats/checkpoint.md has the layout and its rules. The Go package ckptagent/format reads and writes the same arenas.
Tests of both read the golden arenas in ckptagent/format/testdata.
"""

import collections
import ctypes
import errno
import fcntl
import os
import struct
import time

from . import _memory

VERSION = 1
PAGE = 4096
SLOTS = 3  # or 2, if the header says so
RECORD = 256
META = 8 * PAGE
CONTROL = PAGE
CLIENT = 2 * PAGE
SECOND = PAGE // 2
NO_SLOT = 0xFFFFFFFF
EMPTY, GRANTED, SEALED = 0, 1, 2

_HEADER = struct.Struct("<8s4I3Qq40s")
_CONTROL = struct.Struct("<8sII11Q")
_CLIENT = struct.Struct("<8sII7QII9QIIQ")
_SLOT = struct.Struct("<8sII4QI4xqQI")
_U32 = struct.Struct("<I")

Header = collections.namedtuple("Header", "local_rank state_bytes data_offset stride created_at pod_uid slots")
Control = collections.namedtuple(
    "Control",
    "seq slot generation grant common_step reclaim_below barrier_step branch durable_step durable_branch replicated_step replicated_branch",
)
Client = collections.namedtuple(
    "Client",
    "seq slot generation grant copy_step length step restored_step pid flags saves skipped needed refused"
    " branch overlap_step overlap_grant dropped blocking reason span overlapped",
    defaults=(0,) * 8,
)
Slot = collections.namedtuple("Slot", "state grant generation step length crc sealed_at branch flags", defaults=(0, 0))

FLAG_ATTACHED, FLAG_RESTORED, FLAG_RESTORING, FLAG_GROUPED = 1, 2, 4, 8
# Flags of a slot: it was filled from storage; storage could not authenticate it.
FLAG_FROM_STORAGE, FLAG_UNAUTHENTICATED = 1, 2


class ArenaError(RuntimeError):
    """The arena cannot be used; the text has the reason and the remedy."""


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return tuple(table)


_TABLE = _table()


def crc32c(data):
    """CRC32C of a few bytes; the standard library has none. Data is checksummed by the agent."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in bytes(data):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def seal(body):
    """Pads body to a record, and adds its checksum."""
    body = body.ljust(RECORD - 4, b"\0")
    return body + _U32.pack(crc32c(body))


def whole(record, magic):
    """Whether this is an untorn record of the given kind and of the known version."""
    end = RECORD - 4
    if len(record) < RECORD or record[:8] != magic or _U32.unpack_from(record, 8)[0] != VERSION:
        return False
    return _U32.unpack_from(record, end)[0] == crc32c(record[:end])


def decode_header(record):
    if not whole(record, b"HOLDFAST"):
        raise ArenaError("the arena's header is torn or of another version than %d" % VERSION)
    (_, _, slots, page, rank, state, data, stride, created, uid) = _HEADER.unpack_from(record)
    if slots not in (SLOTS, 2) or page != PAGE:
        raise ArenaError("the arena has %d slots and pages of %d, this client supports 2 or %d and %d" % (slots, page, SLOTS, PAGE))
    return Header(rank, state, data, stride, created, uid.rstrip(b"\0").decode("ascii", "replace"), slots)


def decode_control_record(record):
    if not whole(record, b"HFCONTRL"):
        return None
    _, _, slot, seq, *rest = _CONTROL.unpack_from(record)
    return Control(seq, slot, *rest)


def decode_client_record(record):
    if not whole(record, b"HFCLIENT"):
        return None
    _, _, slot, seq, *rest = _CLIENT.unpack_from(record)
    return Client(seq, slot, *rest)


def encode_client(c):
    return seal(_CLIENT.pack(b"HFCLIENT", VERSION, c.slot, c.seq, *c[2:]))


def decode_slot(record):
    if not whole(record, b"HFSLOTHD"):
        return None
    return Slot(*_SLOT.unpack_from(record)[2:])


def newer(page, decode):
    """The untorn record with the higher number of the two on a page, or None."""
    a, b = decode(page[:RECORD]), decode(page[SECOND : SECOND + RECORD])
    if a is None or (b is not None and b.seq > a.seq):
        return b
    return a


def record_offset(page, seq):
    return page + (SECOND if seq % 2 else 0)


class Arena:
    """One rank's arena, mapped and locked. Only the process that opened it may use it."""

    def __init__(self, path, wait=5.0):
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            raise ArenaError("opening the arena %s: %s" % (path, e.strerror)) from e
        try:
            self._lock(wait)
            size = os.fstat(self._fd).st_size
            if size < META:
                raise ArenaError("the arena %s has %d bytes and is incomplete" % (path, size))
            self.header = decode_header(os.pread(self._fd, RECORD, 0))
            self.slots = self.header.slots
            if size < self.header.data_offset + self.slots * self.header.stride:
                raise ArenaError("the arena %s is shorter than its header says" % path)
            self.map = _memory.map_shared(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self._control_bytes = None
        self._control = None

    def _lock(self, wait):
        """Locks the arena for one client: refuses a second process of this rank, or one that should have exited."""
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EACCES):
                    raise ArenaError("locking the arena %s: %s" % (self.path, e.strerror)) from e
                if time.monotonic() >= deadline:
                    raise ArenaError("the arena %s is in use by another process" % self.path) from None
            time.sleep(0.01)

    def _bytes(self, at, n):
        return bytes(self.map[at : at + n])

    def control(self):
        """The agent's newest control record, or None before the first."""
        page = self._bytes(CONTROL, RECORD) + self._bytes(CONTROL + SECOND, RECORD)
        if page != self._control_bytes:
            a, b = decode_control_record(page[:RECORD]), decode_control_record(page[RECORD:])
            newest = b if a is None or (b is not None and b.seq > a.seq) else a
            if newest is None:
                return self._control
            self._control_bytes, self._control = page, newest
        return self._control

    def client(self):
        return newer(self._bytes(CLIENT, PAGE), decode_client_record)

    def publish(self, client):
        """Writes a client record; makes earlier writes visible first."""
        at = record_offset(CLIENT, client.seq)
        record = encode_client(client)
        self.map[at : at + len(record)] = record

    def slot(self, i):
        return decode_slot(self._bytes((3 + i) * PAGE, RECORD))

    def data_offset(self, i):
        return self.header.data_offset + i * self.header.stride

    def address(self, i):
        """The address of a slot's data in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map, self.data_offset(i)))

    def find(self, step, branch=0):
        """The slot that holds this step of this branch sealed, or None; of two, the one sealed under the higher grant."""
        found = None
        for i in range(self.slots):
            s = self.slot(i)
            if s is not None and s.state == SEALED and s.step == step and s.branch == branch and s.length <= self.header.stride:
                if found is None or s.grant > found[1].grant:
                    found = (i, s)
        return found

    def sealed_steps(self):
        slots = [self.slot(i) for i in range(self.slots)]
        return sorted({s.step for s in slots if s is not None and s.state == SEALED})
