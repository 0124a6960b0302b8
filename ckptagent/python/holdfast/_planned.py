"""Converts the plan of torch.distributed.checkpoint for a save to a rank's state, and back.

A rank keeps all items of its plan, also those that the planner lets one rank write for all ranks, so that each rank can
restore from its own memory. The rank also keeps the table of the whole checkpoint, as JSON. See "plans" in
docs/formats/checkpoint.md.
"""

import io
import json
import math
import pickle

from . import _regions, _union
from ._folder import ExportError
from ._pickles import Left

#: The name of the plan's items in a rank's state.
NAME = "__dcp__"
VERSION = 1


def table(plans):
    """The contents of all ranks' plans as a table in bytes: equal for equal layouts."""
    tensors, values, paths = {}, {}, {}
    for plan in plans:
        for item in plan.items:
            data = item.tensor_data
            if data is None:
                values[item.index.fqn] = None
                continue
            _, _, chunks = tensors.setdefault(item.index.fqn, (str(data.properties.dtype)[6:], list(data.size), {}))
            chunks[tuple(data.chunk.offsets)] = list(data.chunk.sizes)
        if isinstance(plan.planner_data, dict):
            paths.update(plan.planner_data)
    rows = {fqn: [dtype, size, sorted([list(at), n] for at, n in chunks.items())] for fqn, (dtype, size, chunks) in tensors.items()}
    names = {fqn: [k if type(k) is int else str(k) for k in path] for fqn, path in paths.items()}
    return json.dumps({"tensors": rows, "values": list(values), "paths": names}, separators=(",", ":"), sort_keys=True).encode()


def metadata(read):
    """The metadata from which torch's planner plans a load, from a table."""
    import torch
    from torch.distributed.checkpoint import metadata as m

    described = {fqn: m.BytesStorageMetadata() for fqn in read["values"]}
    for fqn, (dtype, size, chunks) in read["tensors"].items():
        parts = [m.ChunkStorageMetadata(torch.Size(at), torch.Size(n)) for at, n in chunks]
        described[fqn] = m.TensorStorageMetadata(m.TensorProperties(dtype=getattr(torch, dtype)), torch.Size(size), parts)
    return m.Metadata(described, planner_data={fqn: tuple(path) for fqn, path in read["paths"].items()})


def tree(contents, held):
    """The state of a rank; held: (name, offsets or None, tensor or bytes) of each item."""
    return {"v": VERSION, "table": contents, "held": [[fqn, None if at is None else list(at), what] for fqn, at, what in held]}


class Held:
    """What one rank kept: the table, and (name, offsets or None) -> bytes, or a tensor that is a view of the file or the
    arena."""

    def __init__(self, state, where):
        if state.names() != [NAME]:
            raise ValueError("%s was not saved by holdfast.dcp: it holds %s" % (where, ", ".join(sorted(state.names()))))
        value = state.value(NAME, borrow=True)
        if value.get("v") != VERSION:
            raise ValueError("%s was written by another version of holdfast.dcp (%r): use the client of a newer image" % (where, value.get("v")))
        self.table = json.loads(value["table"])
        self.items = {(fqn, None if at is None else tuple(at)): what for fqn, at, what in value["held"]}


def unite(all_held, load):
    """The Union of the ranks' states: each tensor once, assembled from its parts. load: the value of bytes, or Left."""
    union, table_, found = _union.Union(), all_held[0].table, {}
    for rank, held in enumerate(all_held):
        for (fqn, at), what in held.items.items():
            found.setdefault(fqn, []).append((rank, at, what))
    for fqn in [*table_["tensors"], *table_["values"]]:
        path = tuple(_union.Index(k) if type(k) is int else k for k in table_["paths"].get(fqn, [fqn]))
        if fqn in table_["tensors"]:
            _tensor(union, path, table_["tensors"][fqn], found.get(fqn, ()))
        else:
            _value(union, path, found.get(fqn, ()), load)
    return union


def _tensor(union, path, row, found):
    dtype, size, _ = row
    parts, unlike = {}, {}
    for rank, at, what in found:
        first = parts.setdefault((at, tuple(what.shape)), (_regions.Region(at, (0,) * len(at), tuple(what.shape)), what))[1]
        if first is not what and not _union.same(first, what):
            unlike[rank] = what
    whole = {k: p for k, p in parts.items() if math.prod(k[1]) or not math.prod(size)}
    _union.covered(path, size, list(whole))
    union.add(_union.Tensor(path, dtype, tuple(size), list(whole.values())))
    if unlike:
        union.differ[_union.key(path)] = list(unlike)
        _union.add_own(union, path, [(rank, what) for rank, _, what in found])


def _value(union, path, found, load):
    if not found:
        raise ExportError("the table names %s, but no rank holds it: export another step" % _union.key(path))
    values = [(rank, load(what)) for rank, _, what in found]
    left = next((v.name for _, v in values if isinstance(v, Left)), None)
    if left is not None:
        union.leave(path, left)
    else:
        _union.add_values(union, path, values)


def load(data, trusted):
    """A value that a planner wrote with torch.save; Left if reading it would run its code."""
    import torch

    try:
        return torch.load(io.BytesIO(data), weights_only=not trusted)
    except pickle.UnpicklingError:
        return Left("an object that torch.load(weights_only=True) does not read")
