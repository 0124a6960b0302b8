"""Packs what a script tracks into bytes in a slot, and reads it back.

A state is a *tree* of containers and scalars whose leaves are buffers: tensors, arrays, bytes. Pack walks tracked objects once
per save and copies the buffers. The layout (the place of each buffer) keeps the same bytes until a name, shape or type changes.
See "Data" in docs/formats/checkpoint.md.
"""

import array
import collections
import json
import math
import pickle
import struct
import sys

from . import _copy, _device, _kinds, _memory, _plain, _prefix, _sharded

MAGIC = b"HFSTATE1"
HEAD = struct.Struct("<8s6Q")
HEAD_BYTES = 64
_U64 = struct.Struct("<Q")
_BIG = 64 * 1024
_BULK = 64 * 1024  # from this size on several threads copy a tensor, as bytes
_TENSORS = ("torch", "dtensor")


class Unsupported(TypeError):
    """A part of the state cannot be kept; the text names it."""


class UnknownKind(ValueError):
    """A state written by another version of the client has a part that this one does not support."""


def _align(n, to):
    return (n + to - 1) // to * to


def _torch():
    return sys.modules.get("torch")


def _numpy():
    return sys.modules.get("numpy")


class Leaf:
    """One buffer of the state: its type and the source of its bytes."""

    __slots__ = ("spec", "nbytes", "source", "mesh")

    def __init__(self, spec, nbytes, source, mesh=None):
        # (kind, dtype, shape, strides or None; a shard's layout): equal specs, equal layout
        self.spec = spec
        self.nbytes = nbytes
        self.source = source
        self.mesh = mesh  # a shard's


_names = {}  # dtype -> its name


def torch_leaf(t):
    torch = _torch()
    if type(t) is not torch.Tensor and type(t) is not torch.nn.Parameter:
        if _sharded.is_dtensor(t):
            return _shard_leaf(t)
        why = _plain.why_not(torch, t)
        if why:
            raise Unsupported(why)
    if t.layout is not torch.strided:
        raise Unsupported("is a %s tensor; only dense ones can be kept" % t.layout)
    if t.is_meta or t.is_quantized or t.is_nested:
        raise Unsupported("is a %s tensor; only plain ones with data can be kept" % ("meta" if t.is_meta else "quantised" if t.is_quantized else "nested"))
    if t.nbytes and not t.untyped_storage().nbytes():
        raise Unsupported("is a tensor whose storage was released (resized to 0); it has no data now")
    dtype = t.dtype
    name = _names.get(dtype)
    if name is None:
        if not _plain.can_copy(torch, dtype):
            raise Unsupported("is a tensor of %s, which this PyTorch cannot copy" % dtype)
        name = _names[dtype] = str(dtype)[6:]
    strides = None
    if not t.is_contiguous() and t.numel() > 0:
        strides = tuple(t.stride())
        if not _dense(t.shape, strides):
            strides = None
    return Leaf(("torch", name, tuple(t.shape), strides), t.nbytes, t)


def _shard_leaf(t):
    whole = torch_leaf(_sharded.local(t))
    _, dtype, shape, strides = whole.spec
    try:
        part = _sharded.part(t, strides)
    except KeyError as e:
        raise Unsupported("is a DTensor with placement %s, which is unknown" % e) from e
    return Leaf(("dtensor", dtype, shape, part), whole.nbytes, whole.source, t.device_mesh)


def _dense(shape, strides):
    """Whether strides describe a permutation of a contiguous tensor, so that they can be restored."""
    expect = 1
    for stride, size in sorted(zip(strides, shape)):
        if size == 1:
            continue
        if stride != expect:
            return False
        expect *= size
    return True


class Flat:
    """An unpacked state: leaves, JSON tree, pickled objects."""

    def __init__(self):
        self.leaves = []
        self.tree = {}
        self.objects = []
        self._seen = {}  # identity of a tensor's memory -> its leaf, so that tied weights are kept once

    def add(self, name, value):
        try:
            self.tree[name] = self._walk(value)
        except Unsupported as e:
            raise Unsupported("%s%s" % (name, e)) from e.__cause__

    def _walk(self, v):
        kind = type(v)
        if v is None or kind is bool or kind is int or kind is str:
            return v
        if kind is float:
            if math.isfinite(v):
                return v
            return {"f": "nan" if v != v else "inf" if v > 0 else "-inf"}
        if kind is dict or isinstance(v, collections.OrderedDict):
            return {"d" if kind is dict else "o": self._items(v.items(), True)}
        if kind is list or kind is tuple:
            return {"l" if kind is list else "t": self._items(enumerate(v), False)}
        try:
            return self._leaf_or_object(v)
        except Unsupported as e:
            text = str(e)
            if not text.startswith(("[", " ")):
                raise Unsupported(" " + text) from e.__cause__
            raise

    def _items(self, items, keyed):
        """Walks a container. Builds a leaf's path only for an error, on the way up."""
        out, walk = [], self._walk
        for k, x in items:
            try:
                value = walk(x)
            except Unsupported as e:
                raise Unsupported("[%r]%s" % (k, e)) from e.__cause__
            if not keyed:
                out.append(value)
            elif k is None or type(k) in (str, int, bool):
                out.append([k, value])
            else:
                out.append([walk(k), value])
        return out

    def _leaf_or_object(self, v):
        torch = _torch()
        if torch is not None and isinstance(v, torch.Tensor):
            return {"T": self.tensor(torch_leaf(v))}
        leaf = _plain_leaf(v)
        if leaf is not None:
            return {"T": self._once(id(v), leaf)}
        if hasattr(v, "state_dict") and hasattr(v, "load_state_dict"):
            return self._walk(self._state_of(v))
        return {"p": self._object(v)}

    def tensor(self, leaf):
        """The number of a tensor's leaf; the same memory has the same number."""
        if leaf.nbytes == 0:
            return self._append(leaf)
        t = leaf.source
        return self._once((t.data_ptr(), t.device, leaf.spec, t.stride()), leaf)

    def _once(self, identity, leaf):
        at = self._seen.get(identity)
        if at is None:
            at = self._seen[identity] = self._append(leaf)
        return at

    def _append(self, leaf):
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def _state_of(self, v):
        return _kinds.take(v)

    def _pickled(self, v):
        return pickle.dumps(v, protocol=4)

    def _object(self, v):
        try:
            blob = self._pickled(v)
        except Exception as e:
            raise Unsupported("is a %s and cannot be kept: %s" % (type(v).__name__, e)) from e
        self.objects.append(blob)
        return len(self.objects) - 1


def _plain_leaf(v):
    kind = type(v)
    if kind is bytes or kind is bytearray:
        return Leaf((kind.__name__, "", (len(v),), None), len(v), v)
    if kind is array.array and v.typecode != "u":
        return Leaf(("array", v.typecode, (len(v),), None), len(v) * v.itemsize, v)
    np = _numpy()
    if np is not None and kind is np.ndarray and v.dtype.kind in "biufc" and not v.dtype.metadata:
        return Leaf(("numpy", v.dtype.str, tuple(v.shape), None), v.nbytes, v)
    return None


class Layout:
    """The place of each leaf, and its JSON bytes."""

    def __init__(self, specs, sizes):
        self.specs = specs
        self.offsets = []
        self.prefixes = []  # the bytes just before each leaf, so that torch.load can read a tensor in place
        at = HEAD_BYTES
        rows = []
        for (kind, dtype, shape, strides), n in zip(specs, sizes):
            prefix = _prefix.of(dtype, shape, n) if kind in _TENSORS else b""
            at = _align(at + len(prefix), 4096 if n >= _BIG else 64)
            self.offsets.append(at)
            self.prefixes.append(prefix)
            if kind == "dtensor":
                last = _sharded.to_json(strides)
            else:
                last = list(strides) if strides else None
            rows.append([kind, dtype, list(shape), at, n, last])
            at += n
        self.end = _align(at, 64)
        says = {"prefix": [len(p) for p in self.prefixes]} if any(self.prefixes) else {}
        self.json = json.dumps({"v": 1, "tensors": rows, **says}, separators=(",", ":")).encode()

    def prefix(self, buffer, at):
        """Writes what precedes the leaves of a slot that begins at `at`."""
        for offset, prefix in zip(self.offsets, self.prefixes):
            buffer[at + offset - len(prefix) : at + offset] = prefix


class Packer:
    """Copies states into slots of a mapped arena; keeps layout and destinations between saves."""

    def __init__(self, devices=None):
        self._devices = devices or _device.Devices(print)
        self._layout = None
        self._views = {}  # slot's offset -> list of destination tensors, for the present layout
        self._prefixed = set()  # offsets of the slots whose leaves have their prefixes
        self.pool = _copy.Pool()

    def plan(self, flat):
        """Returns the input of pack and the number of bytes that it will write."""
        specs = [leaf.spec for leaf in flat.leaves]
        if self._layout is None or self._layout.specs != specs:
            self._layout = Layout(specs, [leaf.nbytes for leaf in flat.leaves])
            self._views.clear()
            self._prefixed.clear()
        tree = json.dumps(flat.tree, separators=(",", ":")).encode()
        objects = b"".join(_U64.pack(len(b)) + b for b in flat.objects)
        tail = self._layout.json + tree + objects
        return (self._layout, len(tree), len(objects), tail), self._layout.end + len(tail)

    def pack(self, buffer, at, flat, plan, leave=()):
        """Writes the state at offset `at` of buffer, without the leaves of these numbers; returns the places of all leaves."""
        layout, tree, objects, tail = plan
        views = self.place(buffer, at, flat, layout, leave)
        if at not in self._prefixed:
            layout.prefix(buffer, at)
            self._prefixed.add(at)
        end, n = layout.end, len(layout.json)
        buffer[at + end : at + end + len(tail)] = tail
        head = HEAD.pack(MAGIC, end, n, end + n, tree, end + n + tree, objects)
        buffer[at : at + HEAD_BYTES] = head.ljust(HEAD_BYTES, b"\0")
        return views

    def overwritten(self, at):
        """Called when the slot at this offset was written by other code."""
        self._prefixed.discard(at)

    def place(self, buffer, at, flat, layout, leave=()):
        """Copies the leaves to their places in the layout, skipping those already there; returns the places."""
        views = self._views.get(at)
        if views is None:
            views = self._views[at] = [
                _view(buffer, at + offset, leaf) for offset, leaf in zip(layout.offsets, flat.leaves)
            ]
        tensors, sources, bulk, there = [], [], [], []
        for i, (leaf, view, offset) in enumerate(zip(flat.leaves, views, layout.offsets)):
            if i in leave:
                continue
            if view is None:
                if leaf.nbytes:
                    buffer[at + offset : at + offset + leaf.nbytes] = memoryview(leaf.source).cast("B")
            elif leaf.spec[0] in _TENSORS and _device.is_on_one(leaf.source):
                there.append((view, leaf.source))
            elif leaf.nbytes >= _BULK and _as_bytes(leaf):
                if view.data_ptr() != leaf.source.data_ptr():
                    bulk.append((view.data_ptr(), leaf.source.data_ptr(), leaf.nbytes))
            elif leaf.spec[0] in _TENSORS:
                tensors.append(view)
                sources.append(leaf.source)
            else:
                view[...] = leaf.source
        with self._devices.copied(there):
            if tensors:
                _copy_tensors(tensors, sources)
            if bulk:
                self.pool.copy(bulk)
        return views


def _as_bytes(leaf):
    """Whether a tensor's bytes in this process's memory have the order that the slot needs."""
    if leaf.spec[0] not in _TENSORS:
        return False
    t = leaf.source
    return t.device.type == "cpu" and t.is_contiguous() and not t.is_conj() and not t.is_neg()


def _view(buffer, offset, leaf):
    """Destination of one leaf as a tensor or array in the arena; None: copied as bytes."""
    kind, dtype, shape, _ = leaf.spec
    if leaf.nbytes == 0:
        return None
    if kind in _TENSORS:
        return _torch_view(_torch(), buffer, offset, dtype, shape, leaf.nbytes)
    if kind == "numpy":
        np = _numpy()
        return np.frombuffer(buffer, np.dtype(dtype), math.prod(shape), offset).reshape(shape)
    return None


def _torch_view(torch, buffer, offset, dtype, shape, nbytes):
    raw = torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes, offset=offset)
    return raw.view(getattr(torch, dtype)).view(shape)


def _copy_tensors(views, sources):
    torch = _torch()
    with torch.no_grad():
        many = getattr(torch, "_foreach_copy_", None)  # one call instead of thousands, if torch has it
        if many is not None:
            many(views, sources)
            return
        for view, source in zip(views, sources):
            view.copy_(source)


class Unpacker:
    """Reads a state from a slot. Buffers are views of the arena until they are copied."""

    def __init__(self, buffer, at, length, pool=None):
        self._pool = pool or _copy.Pool()
        self._moves = []  # copies that value has planned and not made yet
        self._made = []  # both ends of them
        self._leaves = {}  # of the present value: number -> tensor, so that tied ones are one again
        if length < HEAD_BYTES:
            raise ValueError("%d bytes are no state" % length)
        magic, lo, ln, to, tn, oo, on = HEAD.unpack_from(buffer, at)
        if magic != MAGIC:
            raise ValueError("no state: magic %r" % magic)
        if max(lo + ln, to + tn, oo + on) > length:
            raise ValueError("the state's directory points past its end")
        self._buffer, self._at, self._length = buffer, at, length
        layout = json.loads(bytes(buffer[at + lo : at + lo + ln]))
        if layout.get("v") != 1:
            raise ValueError("layout version %r is unknown" % layout.get("v"))
        self._layout, self._rows = layout, layout["tensors"]
        self.tree = json.loads(bytes(buffer[at + to : at + to + tn]))
        self._objects = bytes(buffer[at + oo : at + oo + on])

    def names(self):
        return list(self.tree)

    def value(self, name, borrow=False):
        """The value saved under name. With borrow, tensors are views of the arena, to be copied at once. Shards are always views,
        and become DTensors only by a Placer."""
        try:
            value = self._build(self.tree[name], borrow)
            if self._moves:
                self._pool.copy(self._moves, _memory.HugePages(self._moves).copy)
            return value
        finally:
            self._moves, self._made, self._leaves = [], [], {}

    def _build(self, v, borrow):
        if not isinstance(v, dict):
            return v
        ((tag, x),) = v.items()
        if tag == "d" or tag == "o":
            pairs = ((self._build(k, borrow), self._build(y, borrow)) for k, y in x)
            return dict(pairs) if tag == "d" else collections.OrderedDict(pairs)
        if tag == "l":
            return [self._build(y, borrow) for y in x]
        if tag == "t":
            return tuple(self._build(y, borrow) for y in x)
        if tag == "f":
            return float(x)
        if tag == "T":
            return self._leaf(x, borrow)
        if tag == "p":
            return self._object(x)
        raise UnknownKind("tree tag %r is unknown" % tag)

    def _object(self, index):
        at = 0
        for _ in range(index):
            at += 8 + _U64.unpack_from(self._objects, at)[0]
        (n,) = _U64.unpack_from(self._objects, at)
        return self._unpickled(self._objects[at + 8 : at + 8 + n])

    def _unpickled(self, blob):
        return pickle.loads(blob)

    def _leaf(self, index, borrow):
        kind, dtype, shape, offset, n, strides = self._rows[index]
        if offset + n > self._length:
            raise ValueError("buffer %d points past the end of the state" % index)
        at = self._at + offset
        if kind == "torch":
            if index not in self._leaves:
                self._leaves[index] = self._tensor(dtype, shape, at, n, strides, borrow)
            return self._leaves[index]
        if kind == "dtensor":  # its row's last word is its layout; always borrowed: the Placer copies it
            part = _sharded.from_json(strides)
            return _sharded.Saved(part, self._tensor(dtype, shape, at, n, None, True))
        if kind == "numpy":
            np = _numpy() or __import__("numpy")
            if n == 0:
                return np.zeros(shape, np.dtype(dtype))
            view = np.frombuffer(self._buffer, np.dtype(dtype), math.prod(shape), at).reshape(shape)
            return view if borrow else view.copy()
        data = bytes(self._buffer[at : at + n])
        if kind == "bytes":
            return data
        if kind == "bytearray":
            return bytearray(data)
        if kind == "array":
            return array.array(dtype, data)
        raise UnknownKind("buffer kind %r is unknown" % kind)

    def _tensor(self, dtype, shape, at, n, strides, borrow):
        torch = _torch() or __import__("torch")
        if n == 0:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        view = _torch_view(torch, self._buffer, at, dtype, shape, n)
        if borrow:
            return view
        if strides:
            return torch.empty_strided(shape, strides, dtype=view.dtype).copy_(view)
        if n < _BULK:
            return view.clone()
        made = torch.empty(shape, dtype=view.dtype, device="cpu")
        self._moves.append((made.data_ptr(), view.data_ptr(), n))
        self._made.append((made, view))
        return made


def assign(current, saved):
    """Makes current equal to saved, in place if possible; returns the value that replaces it."""
    torch, np = _torch(), _numpy()
    if torch is not None and isinstance(current, torch.Tensor) and isinstance(saved, torch.Tensor):
        if current is saved:
            return current
        if current.shape == saved.shape and current.dtype == saved.dtype and _plain.writable(torch, current):
            with torch.no_grad():
                _device.fill(current, saved)
            return current
        return saved
    if hasattr(current, "load_state_dict") and hasattr(current, "state_dict"):
        _kinds.give(current, saved)
        return current
    if np is not None and isinstance(current, np.ndarray) and isinstance(saved, np.ndarray):
        if current.shape == saved.shape and current.dtype == saved.dtype and current.flags.writeable:
            current[...] = saved
            return current
        return saved
    if isinstance(current, dict) and isinstance(saved, dict):
        for k in [k for k in current if k not in saved]:
            del current[k]
        for k, v in saved.items():
            current[k] = assign(current[k], v) if k in current else v
        return current
    if type(current) is list and type(saved) is list:
        current[:] = [assign(a, b) for a, b in zip(current, saved)] + saved[len(current) :]
        return current
    if type(current) is type(saved) and isinstance(current, (bytearray, array.array)):
        current[:] = saved
        return current
    return saved
