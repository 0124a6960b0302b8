"""Makes a step's rank files readable by stock torch.distributed.checkpoint: writes `values` and `.metadata` beside them.

    python3 -I -S -c PROGRAM …/gen-3/step-120.rank- 8       PROGRAM: imports this, calls main()

The agent runs this program; "Read in place" in docs/formats/storage.md has the reasons. The program needs only the standard
library. The program unpickles nothing: it writes the names of classes, and copies the bytes that the client pickled.
"""

import functools
import gc
import io
import mmap
import os
import pickle
import re
import sys
import types

from . import _folder, _planned, _prefix, _sharded, _union
from ._folder import ExportError

_DTYPES = {
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex128",
    "complex64", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
}  # fmt: skip
_NUMBERS = re.compile("[<>|=][biufc][0-9]{1,2}")

_modules = {}  # modules of named classes; they are not imported and need not be installed


@functools.cache
def _named(module, name):
    """A class that is pickled by its name alone; a reader gets the real class."""
    made = type(name, (), {"__module__": module})
    setattr(_modules.setdefault(module, types.ModuleType(module)), name, made)
    return made


def _pickled(value):
    sys.modules.update(_modules)
    try:
        return pickle.dumps(value, 3)
    finally:
        for name in _modules:
            del sys.modules[name]


class Call:
    """Is pickled as a call of a function."""

    __slots__ = ("of", "args")

    def __init__(self, of, *args):
        self.of, self.args = of, args

    def __reduce__(self):
        return self.of, self.args


@functools.cache
def _dtype(name):
    made = _named("torch", name)()
    made.__class__.__reduce__ = lambda self: name
    setattr(_modules["torch"], name, made)
    return made


@functools.cache
def _size(dims):
    return Call(_named("torch", "Size"), dims)


def _new(name, module="metadata", **fields):
    made = _named("torch.distributed.checkpoint." + module, name)()
    made.__dict__.update(fields)
    return made


@functools.cache
def _properties(dtype):
    """The properties of a row-major tensor, in the form of the oldest torch that reads it; newer ones accept that."""
    made, kind = _new("TensorProperties"), _named("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
    layout, contiguous = Call(_named("torch.serialization", "_get_layout"), "torch.strided"), Call(kind, 0)
    type(made).__getstate__ = lambda self: self.state
    made.state = (_dtype(dtype), layout, False, contiguous, False)
    return made


class _Rank(_union.State):
    """A rank's state, without reading its tensors."""

    def __init__(self, rank, path):
        with open(path, "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        super().__init__(data, _folder.DATA, len(data) - _folder.DATA, functools.partial(Call, pickle.loads))
        self.rank, self._prefixes = rank, self._layout.get("prefix", ())

    def _leaf(self, index, borrow):
        kind, dtype, shape, offset, n, last = self._rows[index]
        if kind in ("torch", "dtensor"):
            place = self._place(index)
            return _sharded.Saved(_sharded.from_json(last), place) if kind == "dtensor" else place
        if kind == "numpy":
            if not _NUMBERS.fullmatch(dtype):
                raise ValueError("numpy arrays of %r are unknown" % dtype)
            return Call(_named("numpy", "ndarray"), tuple(shape), dtype, bytearray(self.read(offset, n)))
        return super()._leaf(index, borrow)

    def _place(self, index):
        _, dtype, shape, offset, n, _ = self._rows[index]
        prefix = self._prefixes[index]
        if dtype not in _DTYPES or not 0 < prefix < offset <= self._length - n:
            raise ValueError("tensor %d, %s of %d bytes at %d, is unknown" % (index, dtype, n, offset))
        return _union.Place(dtype, tuple(shape), self.rank, self._at + offset - prefix, prefix + n)

    def read(self, at, n):
        return self._buffer[self._at + at : self._at + at + n]

    def planned(self):
        """Whether holdfast.dcp saved it."""
        return self.names() == [_planned.NAME]

    def leaves(self):
        """(path, leaf) of each: leaf is a Place, a shard of one, an empty dict, or the bytes of any other value."""
        if self.planned():
            raise ExportError("rank %d was saved by holdfast.dcp and others were not" % self.rank)
        for path, leaf in _union.leaves_of({name: self.value(name, borrow=True) for name in self.names()}):
            if not isinstance(leaf, (_union.Place, _sharded.Saved, dict)):
                leaf = self._written(leaf)
            yield path, leaf

    def _written(self, value):
        """The bytes that torch.save writes for a value, in its format before zip files."""
        return _prefix.HEAD + _pickled(self._closed(value)) + b"\x80\x02]."

    def _closed(self, value):
        """The value, with each tensor replaced by a call that loads it."""
        if isinstance(value, _union.Place):
            return Call(_named("torch", "load"), io.BytesIO(self._buffer[value.at : value.at + value.length]))
        if type(value) in (list, tuple):
            return type(value)(map(self._closed, value))
        if isinstance(value, dict):
            return type(value)((k, self._closed(v)) for k, v in value.items())
        return value


def unite(paths):
    """The Union of the ranks' states. Reads one rank's state at a time."""
    planned, ranks = _Rank(0, paths[0]).planned(), (_Rank(rank, path) for rank, path in enumerate(paths))
    if planned:
        return _planned.unite([_planned.Held(s, paths[s.rank]) for s in ranks], load=bytes)
    return _union.gather(s.leaves() for s in ranks)


def metadata(union, paths):
    """The contents of `values` and of `.metadata`."""
    values, at, described, named, stored = io.BytesIO(), {}, {}, {}, {}
    files = ["../" + os.path.basename(p) for p in paths]

    def store(name, offset, index, file, at, length):
        where = _new("_StorageInfo", "filesystem", relative_path=file, offset=at, length=length)
        stored[_new("MetadataIndex", fqn=name, offset=offset, index=index)] = where

    for name, entry in union.entries.items():
        if isinstance(entry, _union.Tensor):
            chunks = []
            for region, place in entry.parts:
                _union.narrow(region, place)
                offsets = _size(region.offsets)
                store(name, offsets, len(chunks), files[place.rank], place.at, place.length)
                chunks.append(_new("ChunkStorageMetadata", offsets=offsets, sizes=_size(region.sizes)))
            described[name] = _new("TensorStorageMetadata", properties=_properties(entry.dtype), size=_size(entry.shape), chunks=chunks)
        elif entry.value == {}:
            continue  # torch has no entry for an empty dict
        else:
            if entry.value not in at:
                at[entry.value] = values.tell()
                values.write(entry.value)
            store(name, None, None, "values", at[entry.value], len(entry.value))
            described[name] = _new("BytesStorageMetadata")
        named[name] = tuple(int(x) if isinstance(x, _union.Index) else str(x) for x in entry.path)
    made = _new("Metadata", state_dict_metadata=described, planner_data=named, storage_data=stored)
    return values.getbuffer(), _pickled(made)


def main():
    """Writes to standard output the number of bytes of the values, a newline, the values, and .metadata."""
    gc.disable()  # there are no reference cycles here
    files, ranks = sys.argv[1:]
    paths = ["%s%d" % (files, rank) for rank in range(int(ranks))]
    try:
        values, described = metadata(unite(paths), paths)
    except (ExportError, AttributeError, KeyError, IndexError, MemoryError, OSError, RecursionError, TypeError, ValueError) as e:
        sys.exit(("%s: %s" % (type(e).__name__, e))[:500])
    for part in (b"%d\n" % len(values), values, described):
        sys.stdout.buffer.write(part)
