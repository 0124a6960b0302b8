"""A small stand-in for the agent, for tests of the client: makes arenas, grants, seals, counts datagrams."""

import json
import os
import socket
import struct
import sys
import time

from holdfast import _arena as A
from holdfast import _crc32c

_CONTROL, _SLOT, _HEADER = A._CONTROL, A._SLOT, A._HEADER


class FakeAgent:
    def __init__(self, folder, rank=0, state_bytes=65536, generation=1, restore_step=0):
        self.folder, self.rank = str(folder), rank
        self.path = os.path.join(self.folder, "rank-%d.arena" % rank)
        self.socket_path = os.path.join(self.folder, "agent-%d.sock" % rank)
        self.state_bytes = state_bytes
        self.stride = -(-state_bytes // A.PAGE) * A.PAGE
        self.generation, self.restore_step = generation, restore_step
        self.grant, self.seq, self.common_step, self.reclaim_below, self.barrier_step, self.durable_step = 0, 0, 0, 0, 0, 0
        self.granted = A.NO_SLOT
        if os.path.exists(self.path):
            self.file = open(self.path, "r+b", buffering=0)
            self._resume()
        else:
            self.file = open(self.path, "w+b", buffering=0)
            self.file.truncate(A.META + A.SLOTS * self.stride)
            self._write(0, A.seal(_HEADER.pack(b"HOLDFAST", A.VERSION, 3, A.PAGE, rank, state_bytes, A.META, self.stride, 0, b"test")))
            for i in range(A.SLOTS):
                self.set_slot(i, A.Slot(A.EMPTY, 0, 0, 0, 0, 0, 0))
        if os.path.exists(self.socket_path):
            os.unlink(self.socket_path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.socket_path)
        self.socket.setblocking(False)

    def close(self):
        self.file.close()
        self.socket.close()

    def _resume(self):
        for i in range(A.SLOTS):
            s = self.slot(i)
            self.grant = max(self.grant, s.grant)
            if s.state != A.SEALED or s.step > self.restore_step:
                self.set_slot(i, s._replace(state=A.EMPTY))
        old = A.newer(self._read(A.CONTROL, A.PAGE), A.decode_control_record)
        self.seq = old.seq if old else 0
        self.common_step = self.reclaim_below = self.restore_step

    def _read(self, at, n):
        return os.pread(self.file.fileno(), n, at)

    def _write(self, at, data):
        os.pwrite(self.file.fileno(), data, at)

    def slot(self, i):
        return A.decode_slot(self._read((3 + i) * A.PAGE, A.RECORD))

    def set_slot(self, i, s):
        self._write((3 + i) * A.PAGE, A.seal(_SLOT.pack(b"HFSLOTHD", A.VERSION, *s)))

    def publish(self):
        self.seq += 1
        record = A.seal(_CONTROL.pack(b"HFCONTRL", A.VERSION, self.granted, self.seq, self.generation, self.grant, self.common_step, self.reclaim_below, self.barrier_step, 0, self.durable_step, 0, 0, 0))
        self._write(A.record_offset(A.CONTROL, self.seq), record)

    def open_grant(self):
        """Grants a slot by the agent's rule: an empty slot, otherwise the oldest reusable one."""
        slots = [self.slot(i) for i in range(A.SLOTS)]
        free = [i for i, s in enumerate(slots) if s.state != A.SEALED]
        if not free:
            newest = max(s.step for s in slots)
            usable = [i for i, s in enumerate(slots) if s.step not in (self.common_step, newest) and s.step < self.reclaim_below]
            free = sorted(usable, key=lambda i: slots[i].step)[:1]
        self.granted = A.NO_SLOT
        if free:
            self.grant += 1
            self.granted = free[0]
            self.set_slot(free[0], A.Slot(A.GRANTED, self.grant, self.generation, 0, 0, 0, 0))
        self.publish()
        return self.granted

    def client(self):
        return A.newer(self._read(A.CLIENT, A.PAGE), A.decode_client_record)

    def seal(self, everywhere=True):
        """Seals an announced copy; returns its step or None. With everywhere, the step is common at once."""
        c = self.client()
        if c is None or c.grant != self.grant or c.slot != self.granted or not c.grant:
            return None
        data = self.data(c.slot, c.length)
        self.set_slot(c.slot, A.Slot(A.SEALED, c.grant, self.generation, c.copy_step, c.length, checksum(data), time.time_ns()))
        if everywhere:
            self.common_step = self.reclaim_below = c.copy_step
        self.open_grant()
        return c.copy_step

    def data(self, slot, length):
        return self._read(A.META + slot * self.stride, length)

    def flip(self, slot, at):
        """Changes one byte of a slot's data."""
        where = A.META + slot * self.stride + at
        self._write(where, bytes([self._read(where, 1)[0] ^ 1]))

    def events(self):
        got = []
        while True:
            try:
                got.append(json.loads(self.socket.recv(1 << 20)))
            except BlockingIOError:
                return got

    def environment(self):
        return {
            "HOLDFAST_ARENA": self.path, "HOLDFAST_SOCKET": self.socket_path, "HOLDFAST_LOCAL_RANK": str(self.rank),
            "HOLDFAST_GENERATION": str(self.generation), "HOLDFAST_RESTORE_STEP": str(self.restore_step),
        }


def checksum(data):
    """The CRC32C of a slot's data."""
    if "torch" not in sys.modules or len(data) < 1 << 16:
        return A.crc32c(data)
    return _crc32c.crc32c(bytearray(data), 0, len(data))


def u64(n):
    return struct.pack("<Q", n)
