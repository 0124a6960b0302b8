"""A rank that holds no state gets that of another rank over the job's process group, where each rank holds the whole state."""

import mmap
import sys

from . import _kinds, _sharded
from ._kinds import RestoreError

_PIECE = 64 << 20


def _distributed():
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def grouped():
    """Whether the script has made its process group."""
    return _distributed() is not None


def span(tracked):
    """Over how many ranks the tracked objects are divided: 1, if each rank holds all of them."""
    dist = _distributed()
    world = dist.get_world_size() if dist is not None else 1
    whole = not any(_divided(v) for v in tracked.values())
    return 1 if whole else world


def _divided(value):
    if isinstance(value, dict):
        return any(_divided(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_divided(v) for v in value)
    return bool(_sharded.meshes(value)) or _kinds.is_zero(value) or type(value).__module__ == "holdfast.deepspeed"


def exchange(step, donor, arena, found):
    """Sends the state of rank donor to all ranks. Returns it on a rank that holds none (found is None), else None."""
    dist = _distributed()
    if dist is None:
        raise RestoreError("restoring step %d: a rank that joins gets its state from rank %d over the process group: call init_process_group() before restore()" % (step, donor))
    torch = sys.modules["torch"]
    device = "cuda" if "nccl" in str(dist.get_backend()) else "cpu"
    gives = dist.get_rank() == donor
    if gives and found is None:
        raise RestoreError("restoring step %d: rank %d is to give its state and does not hold it" % (step, donor))
    length = torch.tensor([found[1].length if gives else 0], dtype=torch.int64, device=device)
    dist.broadcast(length, donor)
    length = int(length[0])
    into = mmap.mmap(-1, max(1, length)) if found is None else None
    for at in range(0, length, _PIECE):
        n = min(_PIECE, length - at)
        if gives:
            piece = torch.frombuffer(arena.map, dtype=torch.uint8, count=n, offset=arena.data_offset(found[0]) + at).to(device)
        else:
            piece = torch.empty(n, dtype=torch.uint8, device=device)
        dist.broadcast(piece, donor)
        if into is not None:
            torch.frombuffer(into, dtype=torch.uint8, count=n, offset=at).copy_(piece)
    return memoryview(into)[:length] if into is not None else None
