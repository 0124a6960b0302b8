"""Computes the position of one rank's shard in the whole tensor, from the layout alone: without a mesh, a process group or
torch."""

import collections
import functools
import itertools
import math

#: A box of a tensor: its offsets in the whole tensor and in the shard, and its size.
Region = collections.namedtuple("Region", "offsets local sizes")


class Incomplete(ValueError):
    """A shard is no plain part of the tensor; the text has the reason."""


@functools.lru_cache(maxsize=4096)  # layers have the same layout
def regions(part, local_shape):
    """The boxes of the whole tensor that this part's shard holds, in the shard's order. None if it is empty, or if this rank is
    not on the mesh."""
    if part.at is None:
        return ()
    for kind, *rest in part.placements:
        if kind == "partial":
            raise Incomplete("it is a partial %s, to be reduced over ranks" % rest[0])
    runs = [_runs(n, dim, part) for dim, n in enumerate(part.shape)]
    holds = tuple(sum(hi - lo for lo, hi in r) for r in runs)
    if holds != tuple(local_shape):
        raise Incomplete("the rank at %s holds %s of it, where its layout says %s" % (part.at, list(local_shape), list(holds)))
    if math.prod(holds) == 0 and math.prod(part.shape) != 0:
        return ()
    boxes = itertools.product(*(_placed(r) for r in runs))
    return tuple(Region(tuple(b[0] for b in box), tuple(b[1] for b in box), tuple(b[2] for b in box)) for box in boxes)


def _runs(size, dim, part):
    """The indices of one dimension that the shard holds, as ranges in its order. The mesh's dimensions are applied from left to
    right."""
    runs = [(0, size)]
    for ranks, at, (kind, *rest) in zip(part.mesh, part.at, part.placements):
        if kind == "shard" and rest[0] == dim:
            runs = _chunk(runs, ranks, at)
        elif kind == "strided" and rest[0] == dim:
            runs = [r for i in range(rest[1]) for r in _chunk(_chunk(runs, rest[1], i), ranks, at)]
    joined = []
    for lo, hi in runs:
        if joined and joined[-1][1] == lo:
            joined[-1] = (joined[-1][0], hi)
        else:
            joined.append((lo, hi))
    return joined or [(0, 0)]


def _chunk(runs, chunks, index):
    """One chunk of several, cut as torch.chunk cuts: equal sizes, then a smaller one, then empty ones."""
    size = -(-sum(hi - lo for lo, hi in runs) // chunks)
    first, last = index * size, (index + 1) * size
    out, at = [], 0
    for lo, hi in runs:
        a, b = max(lo, lo + first - at), min(hi, lo + last - at)
        if a < b:
            out.append((a, b))
        at += hi - lo
    return out


def _placed(runs):
    at, out = 0, []
    for lo, hi in runs:
        out.append((lo, at, hi - lo))
        at += hi - lo
    return out
