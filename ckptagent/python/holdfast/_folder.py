"""A job's folder in storage, read without an agent: its complete steps and their verified rank files.

docs/formats/storage.md has the format. The Go package ckptagent/store reads and writes the same files.
"""

import collections
import json
import mmap
import os
import re
import struct

from . import _arena
from ._crc32c import crc32c

VERSION = 1
_HEAD = 128  # bytes of a rank file's head, in every version
DATA = 4096
_HEADER = struct.Struct("<8sII3QIIQ")
_NUMBER = r"(0|[1-9]\d*)"
_GENERATION = re.compile(r"gen-%s" % _NUMBER)
_MANIFEST = re.compile(r"step-%s\.manifest\.json" % _NUMBER)

#: A step with a valid manifest; ranks: (length, crc32c) of each rank's file; branch: the line of training that it belongs to.
Step = collections.namedtuple("Step", "generation step ranks branch", defaults=(0,))


class ExportError(RuntimeError):
    """A step cannot be exported; the text has the file or tensor, and the remedy."""


def steps(folder):
    """Every complete step, oldest first, and a text for each manifest that was rejected."""
    whole, torn = [], []
    try:
        generations = [(int(m[1]), m[0]) for m in map(_GENERATION.fullmatch, os.listdir(folder)) if m]
    except OSError as e:
        raise ExportError("%s: %s; name a job's folder: <mount>/<gang name>-<job UID>" % (folder, e.strerror)) from e
    for generation, name in generations:
        path = os.path.join(folder, name)
        for m in filter(None, map(_MANIFEST.fullmatch, os.listdir(path))):
            file = os.path.join(path, m[0])
            try:
                with open(file, "rb") as f:
                    whole.append(_manifest(f.read(), generation, int(m[1])))
            except (OSError, ValueError) as e:
                torn.append("%s is not taken: %s" % (file, e))
    return sorted(whole, key=lambda s: s[:2]), sorted(torn)


def _manifest(data, generation, step):
    """The step of a manifest; ValueError has what is wrong."""
    try:
        m = json.loads(data)
        version = m["version"]
        ranks = [(r["length"], r["crc32c"]) for r in m["ranks"]]
        branch = m.get("branch", 0)
        numbers = [m["step"], m["generation"], branch] + [n for r in ranks for n in r]
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError("it is torn (%s)" % (e or type(e).__name__)) from e
    if version != VERSION:
        raise ValueError("it has version %r, this program knows %d: use the client of a newer image" % (version, VERSION))
    if not ranks or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("it is torn: it names no step, generation or rank")
    if (m["generation"], m["step"]) != (generation, step):
        raise ValueError("it says generation %d, step %d" % (m["generation"], m["step"]))
    return Step(generation, step, ranks, branch)


def choose(folder, number=None):
    """The newest complete step, or the newest of that number; and texts on rejected manifests."""
    whole, torn = steps(folder)
    fit = [s for s in whole if number is None or s.step == number]
    if not fit:
        what = "no complete step" if number is None else "no complete step %d" % number
        there = ", ".join("%d (generation %d)" % (s.step, s.generation) for s in whole)
        remedy = "; complete are: %s" % there if whole else "; name a job's folder: <mount>/<gang name>-<job UID>" if not torn else ""
        raise ExportError("%s holds %s%s%s" % (folder, what, remedy, "".join("; " + t for t in torn)))
    return fit[-1], torn


class RankFile:
    """One rank's file, mapped privately: writes to the mapping never reach the file."""

    def __init__(self, folder, step, rank):
        self.rank = rank
        self.path = os.path.join(folder, "gen-%d" % step.generation, "step-%d.rank-%d" % (step.step, rank))
        self.length, self.crc = step.ranks[rank]
        try:
            with open(self.path, "rb") as f:
                size = os.fstat(f.fileno()).st_size
                if size < DATA:
                    raise self.error("it is cut off: it has %d bytes, and a header alone has %d" % (size, DATA))
                self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as e:
            raise self.error("the manifest names it, and it cannot be read: %s" % e.strerror) from e
        self._check_header(size, step)

    def error(self, text):
        return ExportError("%s: %s; export another step (--step), or copy this file again from where it is whole" % (self.path, text))

    def _check_header(self, size, step):
        record = self.map[:_HEAD]
        if record[:8] != b"HFRANKFL":
            raise self.error("it is no rank file: it begins with %r" % record[:8])
        if struct.unpack_from("<I", record, _HEAD - 4)[0] != _arena.crc32c(record[: _HEAD - 4]):
            raise self.error("its header is damaged (checksum), or of a version that this program does not know")
        _, version, rank, number, generation, length, crc, world, branch = _HEADER.unpack_from(record)
        if version != VERSION:
            raise ExportError("%s: it has version %d, this program knows %d: use the client of a newer image" % (self.path, version, VERSION))
        says = (rank, number, generation, branch, world, length, crc)
        should = (self.rank, step.step, step.generation, step.branch, len(step.ranks), self.length, self.crc)
        if says != should:
            raise self.error("its header says rank, step, generation, branch, ranks, length, checksum %s; by name and manifest it should say %s" % (says, should))
        if size != DATA + length:
            raise self.error("it is %s: it has %d bytes instead of %d" % ("cut off" if size < DATA + length else "too long", size, DATA + length))

    def check_data(self):
        got = crc32c(self.map, DATA, self.length)
        if got != self.crc:
            raise self.error("its data is damaged: checksum %08x instead of %08x" % (got, self.crc))
