"""A rank that holds no state gets that of another rank over the job's process group, where other ranks hold the same part of it."""

import collections
import math
import mmap
import os
import sys

from . import _crc32c, _kinds, _sharded
from ._kinds import RestoreError

_PIECE = 64 << 20

#: A state, and the rank that gave it.
Given = collections.namedtuple("Given", "donor data")


def _distributed():
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def grouped():
    """Whether the script has made its process group."""
    return _distributed() is not None


def span(tracked, leaves=()):
    """Over how many consecutive ranks the tracked objects are divided: rank r and rank r + span hold the same part. 1: each rank holds all of
    them. ALL: over all ranks, however many there are, or so that only the leaves taken from an object's state_dict show it: a rank that
    restores has none, and could not say which part it needs."""
    dist = _distributed()
    world = dist.get_world_size() if dist is not None else 1
    if any(_over_all(v) for v in tracked.values()):
        return _sharded.ALL
    spans = {_sharded.span(mesh, placements, world) for v in tracked.values() for mesh, placements in _sharded.layouts(v)}
    whole = math.lcm(*spans)
    taken = {_sharded.span(leaf.mesh, leaf.spec[3].placements, world) for leaf in leaves if leaf.mesh is not None}
    return _sharded.ALL if _sharded.ALL in spans | taken or world % whole or whole % math.lcm(*taken) else whole


def _over_all(value):
    if isinstance(value, dict):
        return any(_over_all(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_over_all(v) for v in value)
    return _kinds.is_zero(value) or type(value).__module__ == "holdfast.deepspeed"


def exchange(step, donor, tracked, arena, found):
    """Sends each part of the state from the lowest rank that holds it to all ranks of the same part. All ranks take part. donor is a rank
    that holds its part. Returns a Given on a rank that holds none (found is None), else None."""
    dist = _distributed()
    if dist is None:
        raise RestoreError("restoring step %d: a rank that joins gets its state from rank %d over the process group: call init_process_group() before restore()" % (step, donor))
    torch, rank = sys.modules["torch"], dist.get_rank()
    at = device(dist, torch)
    parts = torch.tensor([span(tracked)], dtype=torch.int64, device=at)
    dist.all_reduce(parts, op=dist.ReduceOp.MAX)
    parts = int(parts[0])
    if parts == _sharded.ALL:
        raise RestoreError("restoring step %d: the state is divided over all ranks, so none can give another one its part" % step)
    group = _of_the_same_part(dist, rank, parts) if parts > 1 else None
    nobody = dist.get_world_size()
    holder = torch.tensor([nobody if found is None else rank], dtype=torch.int64, device=at)
    dist.all_reduce(holder, op=dist.ReduceOp.MIN, group=group)
    donor = int(holder[0])
    if donor == nobody:
        raise RestoreError("restoring step %d: no rank holds the part of the state of rank %d" % (step, rank))
    given = _receive(dist, torch, at, group, rank == donor, donor, arena, found)
    if group is not None:
        _end(dist, torch, at, group)
    if given is None:
        return None
    data, crc = given
    if _crc32c.crc32c(data, 0, len(data)) != crc:
        raise RestoreError("restoring step %d: the %d bytes that rank %d gave do not have the checksum with which its agent sealed them: nothing was restored" % (step, len(data), donor))
    return Given(donor, memoryview(data))


def _of_the_same_part(dist, rank, parts):
    """The group of the ranks that hold the same part as this one. Every rank makes all groups, in the same order."""
    made = [dist.new_group(list(range(part, dist.get_world_size(), parts))) for part in range(parts)]
    return made[rank % parts]


def _end(dist, torch, at, group):
    """Ends a group. A device's broadcasts return before they are done, and a group that ends before them may end the process."""
    if at.type != "cpu":
        getattr(torch, at.type).synchronize(at)
    dist.destroy_process_group(group)


def _receive(dist, torch, at, group, gives, donor, arena, found):
    """The donor's bytes and their checksum, on a rank that holds none."""
    says = torch.tensor([found[1].length, found[1].crc] if gives else [0, 0], dtype=torch.int64, device=at)
    dist.broadcast(says, donor, group=group)
    length, crc = (int(n) for n in says)
    into = mmap.mmap(-1, max(1, length)) if found is None else None
    for done in range(0, length, _PIECE):
        n = min(_PIECE, length - done)
        if gives:
            piece = torch.frombuffer(arena.map, dtype=torch.uint8, count=n, offset=arena.data_offset(found[0]) + done).to(at)
        else:
            piece = torch.empty(n, dtype=torch.uint8, device=at)
        dist.broadcast(piece, donor, group=group)
        if into is not None:
            torch.frombuffer(into, dtype=torch.uint8, count=n, offset=done).copy_(piece)
    return None if into is None else (into, crc)


def device(dist, torch):
    """The device on which the process group takes tensors: the one to which it is bound, else that on which the script works, else that of the
    local rank. The CPU, if its backend for the CPU serves other devices as well."""
    backends = dict(pair.split(":") for pair in str(dist.get_backend_config()).split(","))
    kind = next((d for d, backend in backends.items() if d != "cpu" and backend != backends.get("cpu")), "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    bound = getattr(dist.distributed_c10d._get_default_group(), "bound_device_id", None)
    if bound is not None and bound.type == kind:
        return bound
    here = getattr(torch, kind)
    index, local = here.current_device(), int(os.environ.get("LOCAL_RANK") or 0)
    return torch.device(kind, index or (local if local < here.device_count() else 0))
