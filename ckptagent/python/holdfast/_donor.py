"""A rank that holds no state gets that of another rank over the job's process group, where other ranks hold the same part of it."""

import collections
import math
import mmap
import os
import sys

from . import _crc32c, _kinds, _sharded
from ._kinds import RestoreError

_PIECE = 64 << 20
_DONORS = 3  # that are tried

#: A state, and the rank that gave it.
Given = collections.namedtuple("Given", "donor data")


def _distributed():
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def grouped():
    """Whether the script has made its process group."""
    return _distributed() is not None


def span(tracked, leaves=None):
    """Over how many consecutive ranks the tracked objects are divided: rank r and rank r + span hold the same part. 1: each rank holds all of
    them. ALL: over all ranks, however many there are, or so that only the leaves taken from an object's state_dict show it: a rank that
    restores has none, and could not say which part it needs. Without leaves the objects that show a mesh are asked for theirs."""
    dist = _distributed()
    world = dist.get_world_size() if dist is not None else 1
    if any(_over_all(v) for v in tracked.values()) or leaves and _hidden(tracked, leaves):
        return _sharded.ALL
    spans = {_sharded.span(mesh, placements, world) for v in tracked.values() for mesh, placements in _sharded.layouts(v)}
    if leaves is None:
        taken = [t for v in tracked.values() for o in _sharded.applications(v) if _sharded.shows(o) for t in _sharded.dtensors(_kinds.take(o))]
        spans |= {_sharded.span(t.device_mesh, _sharded.placed(t), world) for t in taken}
    else:
        spans |= {_sharded.span(leaf.mesh, leaf.spec[3].placements, world) for leaf in leaves if leaf.mesh is not None}
    whole = math.lcm(*spans)
    return _sharded.ALL if _sharded.ALL in spans or world % whole else whole


def _hidden(tracked, leaves):
    """Whether a leaf is on a mesh that no tracked object shows before it is restored."""
    shown = [mesh for v in tracked.values() for mesh, _ in _sharded.meshes(v)]
    shown += [t.device_mesh for v in tracked.values() for o in _sharded.applications(v) for t in _sharded.shown(o)]
    return any(leaf.mesh is not None and not any(m == leaf.mesh for m in shown) for leaf in leaves)


def hidden(tracked, leaves):
    """For users, why ranks without a state cannot get theirs, where objects of the script hide how it is divided; "": they do not."""
    if not _hidden(tracked, leaves):
        return ""
    names = sorted(name for name, v in tracked.items() for o in _sharded.applications(v) if not _sharded.shows(o))
    return "the state of %s is divided over ranks, and only its state_dict() shows how: a job with holdfast.dev/min-pods needs all of its pods; track the model and the optimizer in it themselves, or keep them in attributes of it" % (", ".join(dict.fromkeys(names)) or "an object")


def _over_all(value):
    if isinstance(value, dict):
        return any(_over_all(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_over_all(v) for v in value)
    return _kinds.is_zero(value) or type(value).__module__ == "holdfast.deepspeed"


def exchange(step, donor, tracked, arena, found):
    """Sends each part of the state from the lowest rank that holds it to all ranks of the same part. All ranks take part. donor is a rank
    that holds its part. If the bytes are damaged on a rank, another rank gives them to all, a few times. Returns a Given on a rank that
    holds none (found is None), else None."""
    dist = _distributed()
    if dist is None:
        raise RestoreError("restoring step %d: a rank that joins gets its state from rank %d over the process group: call init_process_group() before restore()" % (step, donor))
    torch, rank = sys.modules["torch"], dist.get_rank()
    at = device(dist, torch)
    parts = _Channel(dist, torch, at, None).most(span(tracked))
    if parts == _sharded.ALL:
        raise RestoreError("restoring step %d: the state is divided over all ranks, so none can give another one its part" % step)
    ranks = range(rank % parts, dist.get_world_size(), parts)
    group = _of_the_same_part(dist, rank, parts) if parts > 1 else None
    try:
        given, damaged = _given(step, ranks, _Channel(dist, torch, at, group), arena, found), None
    except RestoreError as e:
        given, damaged = None, e
    if group is not None:
        _end(dist, torch, at, group)
    if damaged is not None:
        raise damaged
    return given


def _given(step, ranks, channel, arena, found):
    """A Given on a rank that holds none, from the first rank whose bytes arrive whole on all ranks."""
    tried = []
    donor = _another(channel, ranks, tried, found is not None)
    if donor is None:
        raise RestoreError("restoring step %d: no rank holds the part of the state of rank %d" % (step, channel.rank))
    while True:
        given = _receive(channel, donor, arena, found)
        wrong = given is not None and _crc32c.crc32c(given[0], 0, len(given[0])) != given[1]
        tried.append(donor)
        if not channel.most(int(wrong)):
            return None if given is None else Given(donor, memoryview(given[0]))
        if wrong:
            damaged = "restoring step %d: the %d bytes that rank %d gave do not have the checksum with which its agent sealed them: " % (step, len(given[0]), donor)
        donor = _another(channel, ranks, tried, found is not None) if len(tried) < _DONORS else None
        if donor is None and wrong:
            others = "; those of rank %s did not either" % ", ".join(map(str, tried[:-1])) if len(tried) > 1 else ""
            raise RestoreError(damaged + "nothing was restored" + others)
        if donor is None:
            return None if given is None else Given(tried[-1], memoryview(given[0]))
        if wrong:
            print("holdfast: %srank %d gives its state instead" % (damaged, donor), file=sys.stderr, flush=True)


def _another(channel, ranks, tried, holds):
    """The rank that gives next: one that holds the state, in a pod of which none has given yet, if there is one; None: all have."""
    pod = int(os.environ.get("GROUP_RANK") or 0) + 1
    pods = channel.all(len(ranks), ranks.index(channel.rank), pod if holds else 0)
    used = {pods[ranks.index(r)] for r in tried}
    left = [(p in used, r) for r, p in zip(ranks, pods) if p and r not in tried]
    return min(left)[1] if left else None


class _Channel(collections.namedtuple("_Channel", "dist torch at group")):
    """The ranks that hold the same part; group: None for all ranks."""

    @property
    def rank(self):
        return self.dist.get_rank()

    def most(self, number):
        """The highest of the ranks' numbers."""
        return self.all(1, 0, number)[0]

    def all(self, size, index, number):
        """The numbers of all ranks, of which each has an index; of several with one index the highest."""
        numbers = [0] * size
        numbers[index] = number
        numbers = self.torch.tensor(numbers, dtype=self.torch.int64, device=self.at)
        self.dist.all_reduce(numbers, op=self.dist.ReduceOp.MAX, group=self.group)
        return numbers.tolist()


def _of_the_same_part(dist, rank, parts):
    """The group of the ranks that hold the same part as this one. Every rank makes all groups, in the same order."""
    made = [dist.new_group(list(range(part, dist.get_world_size(), parts))) for part in range(parts)]
    return made[rank % parts]


def _end(dist, torch, at, group):
    """Ends a group. A device's broadcasts return before they are done, and a group that ends before them may end the process."""
    if at.type != "cpu":
        getattr(torch, at.type).synchronize(at)
    dist.destroy_process_group(group)


def _receive(channel, donor, arena, found):
    """The donor's bytes and their checksum, on a rank that holds none."""
    dist, torch, at, group = channel
    gives = channel.rank == donor
    says = torch.tensor([found[1].length, found[1].crc] if gives else [0, 0], dtype=torch.int64, device=at)
    dist.broadcast(says, donor, group=group)
    length, crc = says.tolist()
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
