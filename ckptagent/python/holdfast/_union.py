"""The states of all ranks of one step, merged by name: each tensor once, however it was sharded.

Names are those of torch.distributed.checkpoint: a state of dicts and lists becomes keys such as
`model.layer.weight` (docs/checkpoints.md). The tensors are views of the mapped files and are not copied.
"""

import array
import collections
import math
import pickle
import sys

from . import _kinds, _regions, _sharded
from ._client import OWN
from ._folder import ExportError
from ._pickles import Left
from ._state import Unpacker


class Index(int):
    """An index into a list, in a path."""


#: A tensor of the whole state: its parts are (Region, tensor or Place of a rank), which cover it; dtype: the type's name.
Tensor = collections.namedtuple("Tensor", "path dtype shape parts")
#: Anything else: what torch.save writes.
Value = collections.namedtuple("Value", "path value")


class Place:
    """The position of a tensor's bytes in a rank's file, if the tensor is not read."""

    __slots__ = ("dtype", "shape", "rank", "at", "length")

    def __init__(self, dtype, shape, rank, at, length):
        self.dtype, self.shape, self.rank, self.at, self.length = dtype, shape, rank, at, length

    def narrow(self, dim, at, n):
        if (at, n) != (0, self.shape[dim]):
            raise ExportError("it lies in several places of the whole tensor")
        return self


class State(Unpacker):
    """A rank's state, unpickled without running code of its objects."""

    def __init__(self, buffer, at, length, load):
        super().__init__(buffer, at, length)
        self._load = load

    def _unpickled(self, blob):
        return self._load(blob)


def key(path):
    return ".".join(str(p) for p in path)


def own(rank, path):
    """The path of a value that belongs to one rank."""
    return ("rank-%d" % rank, *path)


class Union:
    """entries: every Tensor and Value, by key. differ: key -> ranks whose values differ under one name. left: key -> the type of
    a value that was left out."""

    def __init__(self):
        self.entries, self.differ, self.left = {}, {}, {}

    def add(self, entry):
        name = key(entry.path)
        if name in self.entries:
            raise ExportError("two parts of the state are both called %s; track them under names without dots that clash" % name)
        self.entries[name] = entry

    def leave(self, path, what):
        self.left[key(path)] = what


def unite(states):
    """states: name -> value of each rank, as Unpacker.value returns it with borrow."""
    return gather(map(leaves_of, states))


def leaves_of(state):
    """(path, leaf) of everything that has its own key."""
    return _leaves((), _whole_optimizers(state))


def gather(ranks):
    """The Union of the ranks' leaves."""
    held = {}  # path -> [(rank, leaf)]
    for rank, leaves in enumerate(ranks):
        for path, leaf in leaves:
            found = held.setdefault(path, [])
            if found and path[0] not in OWN and not isinstance(leaf, _sharded.Saved) and same(found[0][1], leaf):
                leaf = found[0][1]  # of equal leaves one is kept
            found.append((rank, leaf))
    union = Union()
    for path, leaves in held.items():
        left = next((x.name for _, leaf in leaves for x in _lefts(leaf)), None)
        if left is not None:
            union.leave(path, left)
        elif path[0] in OWN:
            add_own(union, path, leaves)
        else:
            add_values(union, path, leaves)
    return union


def add_values(union, path, leaves):
    first = leaves[0][1]
    if isinstance(first, _sharded.Saved):
        entry, unlike = _shards(path, leaves)
    else:
        entry = _whole(path, first)
        unlike = [rank for rank, leaf in leaves if leaf is not first and not same(first, leaf)]
    union.add(entry)
    if unlike:
        union.differ[key(path)] = unlike
        add_own(union, path, leaves)


def add_own(union, path, leaves):
    for rank, leaf in leaves:
        union.add(_whole(own(rank, path), leaf.local if isinstance(leaf, _sharded.Saved) else leaf))


def _whole(path, leaf):
    if not _is_tensor(leaf):
        return Value(path, leaf)
    shape = tuple(leaf.shape)
    return Tensor(path, dtype(leaf), shape, [(_regions.Region((0,) * len(shape), (0,) * len(shape), shape), leaf)])


def _shards(path, leaves):
    """The tensor assembled from the ranks' shards, and the ranks whose copies differ from the used ones."""
    first = leaves[0][1]
    parts, unlike, layout = {}, [], _layout(first)
    for rank, leaf in leaves:
        if not isinstance(leaf, _sharded.Saved) or _layout(leaf) != layout:
            unlike.append(rank)
            continue
        try:
            boxes = _regions.regions(leaf.part, tuple(leaf.local.shape))
        except _regions.Incomplete as e:
            raise ExportError("%s cannot be put together: %s" % (key(path), e)) from e
        mine = {(b.offsets, b.sizes): (b, leaf.local) for b in boxes}
        if any(at in parts and not same(narrow(*parts[at]), narrow(*got)) for at, got in mine.items()):
            unlike.append(rank)
            continue
        for at, got in mine.items():
            parts.setdefault(at, got)
    covered(path, first.part.shape, list(parts))
    return Tensor(path, dtype(first.local), first.part.shape, list(parts.values())), unlike


def _layout(leaf):
    return dtype(leaf.local), leaf.part._replace(strides=None, stride=None, at=None)


def covered(path, shape, boxes):
    """Raises unless the boxes cover the whole tensor. They come from one layout, so none overlap."""
    have, want = sum(math.prod(sizes) for _, sizes in boxes), math.prod(shape)
    if have != want:
        raise ExportError("%s cannot be put together: the ranks hold %d elements of a tensor of shape %s, which has %d" % (key(path), have, list(shape), want))


def narrow(region, tensor):
    """The region's part of a rank's tensor."""
    for dim, (at, n) in enumerate(zip(region.local, region.sizes)):
        tensor = tensor.narrow(dim, at, n)
    return tensor


def dtype(t):
    """The name of a tensor's type."""
    return t.dtype if isinstance(t, Place) else str(t.dtype)[6:]


def _is_tensor(v):
    torch = sys.modules.get("torch")
    return isinstance(v, Place) or torch is not None and isinstance(v, torch.Tensor)


def same(a, b):
    """Whether two leaves hold the same bits; unread bytes count as equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Place):
        return (a.dtype, a.shape) == (b.dtype, b.shape)
    if _is_tensor(a):
        import torch

        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))
    if hasattr(a, "dtype"):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(x, y) for x, y in zip(a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b if isinstance(a, (set, frozenset)) else pickle.dumps(a) == pickle.dumps(b)


def _bytes(t):
    import torch

    return t.contiguous().view(-1).view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def _leaves(path, value):
    """(path, leaf) of everything that has its own key, by the rules of torch's flatten_state_dict: it descends into dicts, and
    into lists that contain tensors or dicts. An empty dict is a leaf, too, so that the state can be rebuilt."""
    if isinstance(value, dict):
        if not value:
            yield path, value
        for k, v in value.items():
            yield from _leaves((*path, k), v)
    elif isinstance(value, list) and _opened(value):
        for i, v in enumerate(value):
            yield from _leaves((*path, Index(i)), v)
    elif _holds_shard(value):
        raise ExportError("%s is a tuple with sharded tensors in it, which has no place in a checkpoint of torch's: track a list" % key(path))
    else:
        yield path, value


def _opened(value):
    return any(isinstance(v, (dict, _sharded.Saved)) or _is_tensor(v) or (isinstance(v, list) and _opened(v)) for v in value)


def _holds_shard(value):
    return isinstance(value, (list, tuple)) and _sharded.any_saved(value)


def _lefts(value):
    if isinstance(value, Left):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _lefts(v)


def _whole_optimizers(value):
    """The same state, with optimizers' states in the form of torch.distributed.checkpoint: ZeRO-1 by parameter number in the
    whole optimizer; by parameter name where the optimizer has names."""
    if type(value) is list:
        return [_whole_optimizers(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_kinds.OPTIM, "groups", "part", "of"}:
        value = _kinds.whole_of_zero(value)
    if isinstance(value.get("state"), dict) and isinstance(value.get("param_groups"), list):
        return _by_name(value)
    return {k: _whole_optimizers(v) for k, v in value.items()}


def _by_name(optimizer):
    groups = optimizer["param_groups"]
    names = [n for g in groups for n in g.get("param_names") or ()]
    numbers = [i for g in groups for i in g["params"]]
    if not names or len(set(names)) != len(names) or len(names) != len(numbers):
        return optimizer
    called = dict(zip(numbers, names))
    return {
        **optimizer,
        "state": {called[i]: s for i, s in optimizer["state"].items()},
        "param_groups": [{**g, "params": [called[i] for i in g["params"]]} for g in groups],
    }


PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)


def plain(value):
    """value in types that torch.load(weights_only=True) accepts, or Left."""
    if isinstance(value, array.array):
        return value.tolist()
    np = sys.modules.get("numpy")
    if np is not None and isinstance(value, (np.ndarray, np.generic)):
        return value.item() if isinstance(value, np.generic) else _from_numpy(value)
    if type(value) in (list, tuple):
        items = [plain(v) for v in value]
        return next((v for v in items if isinstance(v, Left)), type(value)(items))
    if isinstance(value, dict):
        items = {k: plain(v) for k, v in value.items()}
        return next((v for v in items.values() if isinstance(v, Left)), items)
    if type(value) in PLAIN or _is_tensor(value) or type(value).__module__ == "torch":
        return value
    return Left("%s.%s" % (type(value).__module__, type(value).__qualname__))


def _from_numpy(value):
    import torch

    try:
        return torch.from_numpy(value.copy())
    except (TypeError, ValueError) as e:
        return Left("numpy array (%s)" % e)
