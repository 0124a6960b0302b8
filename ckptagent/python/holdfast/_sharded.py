"""Keeps one rank's shard of a larger tensor (DTensor: FSDP2, tensor parallel) together with its layout. The module does not
communicate. A shard is restored only to a rank that holds the same part of the same tensor.
"""

import collections
import itertools
import math
import sys
import types

from . import _device, _kinds

REMEDY = (
    "state in memory is not resharded: start with the mesh and sharding that it was saved with, or begin a new job that "
    "loads a checkpoint of torch.distributed.checkpoint"
)

_MOST = 10_000
_SCALARS = (int, float, bool, str, bytes, type(None))

#: The layout of a shard: strides of the local tensor (None: contiguous), shape and stride of the whole tensor, mesh.
Part = collections.namedtuple("Part", "strides shape stride mesh dims at placements")

#: A span: the state is divided over all ranks, however many there are, or over ranks that are not next to each other.
ALL = 0xFFFFFFFF

_PLACEMENTS = {
    "Shard": lambda p: ("shard", p.dim),
    "_StridedShard": lambda p: ("strided", p.dim, p.split_factor),
    "Replicate": lambda p: ("replicate",),
    "Partial": lambda p: ("partial", p.reduce_op),
}


class LayoutDiffers(ValueError):
    """A shard does not fit its target; the text has both layouts."""


def is_dtensor(t):
    kind = type(t)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed")


def local(t):
    """The part of t that this rank holds, sharing its memory; t itself if it is whole."""
    if not is_dtensor(t):
        return t
    with sys.modules["torch"].no_grad():
        return t.to_local()


def placed(t):
    return tuple(_PLACEMENTS[type(p).__name__](p) for p in t.placements)


def part(t, strides=None):
    """The layout of a DTensor's local shard. Raises KeyError for an unknown placement."""
    mesh = t.device_mesh
    at = mesh.get_coordinate()
    return Part(
        strides, tuple(t.shape), tuple(t.stride()), tuple(mesh.shape), mesh.mesh_dim_names and tuple(mesh.mesh_dim_names),
        None if at is None else tuple(at), placed(t),
    )  # fmt: skip


def to_json(p):
    return p._asdict()


def from_json(d):
    def tuples(v):
        return tuple(tuples(x) for x in v) if isinstance(v, list) else v

    return Part(**{k: tuples(d[k]) for k in Part._fields})


def _words(p):
    names = {"shard": "Shard(%d)", "strided": "_StridedShard(%d, %d)", "replicate": "Replicate()", "partial": "Partial(%s)"}
    dims = p.dims or range(len(p.mesh))
    mesh = ", ".join("%s: %d" % x for x in zip(dims, p.mesh))
    how = ", ".join(names[kind] % tuple(rest) for kind, *rest in p.placements)
    return "a tensor of shape %s, placed (%s) on the mesh {%s}, this rank at %s" % (list(p.shape), how, mesh, p.at)


def _same_layout(a, b):
    return a.shape == b.shape and _divided(a) == _divided(b)


def _divided(p):
    """What decides which part of the tensor it is: each dimension of the mesh over which the tensor is divided. Replicas are alike, and their
    number may change."""
    nothing = [None] * len(p.mesh)
    return [d for d in zip(p.dims or nothing, p.mesh, p.at or nothing, p.placements) if d[3] != ("replicate",)]


class Saved:
    """A shard that was read and has no mesh yet."""

    __slots__ = ("part", "local")

    def __init__(self, part, local):
        self.part, self.local = part, local


def dtensors(value):
    """Every DTensor of the tracked objects, but of those of the script's own."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, (dict, list, tuple)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from dtensors(v)
        return
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
    elif isinstance(value, torch.optim.Optimizer):
        tensors = [p for group in value.param_groups for p in group["params"]]
    else:
        tensors = [value]
    yield from (t for t in tensors if is_dtensor(t))


def applications(value):
    """The tracked objects of the script's own: with state_dict, and no module, optimizer or tensor."""
    if isinstance(value, (dict, list, tuple)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from applications(v)
    elif hasattr(value, "state_dict") and not isinstance(value, _known()):
        yield value


def _known():
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)


def reached(value, most):
    """Every tensor, module and optimizer in the attributes of an object of the script: in containers, and the attributes of further objects.
    It calls nothing of them, and looks at so many values at most."""
    left, seen, known = collections.deque([value]), set(), _known()
    for _ in range(most if known else 0):
        if not left:
            return
        v = left.popleft()
        if id(v) in seen:
            continue
        seen.add(id(v))
        if isinstance(v, known):
            yield v
        elif not isinstance(v, (type, types.ModuleType)):
            left.extend(x for x in itertools.islice(_within(v), most) if type(x) not in _SCALARS)


def shown(value):
    """Every DTensor that is reached from an object of the script, among _MOST values at most."""
    return (t for v in reached(value, _MOST) for t in dtensors(v))


def shows(value):
    """Whether an object of the script has a DTensor in its attributes."""
    return next(shown(value), None) is not None


def _within(v):
    if isinstance(v, (list, tuple)):
        return v
    try:
        return (v if isinstance(v, dict) else vars(v)).values()
    except Exception:  # it has none, or raises what it likes
        return ()


def meshes(value):
    """Every (mesh, class of DTensor) that the tracked objects use, each once."""
    return _each_mesh(dtensors(value))


def _each_mesh(tensors):
    found = []
    for t in tensors:
        if not any(m == t.device_mesh for m, _ in found):
            found.append((t.device_mesh, type(t)))
    return found


def layouts(value):
    """Every (mesh, placements) that the tracked objects use, each once."""
    return {(id(t.device_mesh), p): (t.device_mesh, p) for t in dtensors(value) for p in [placed(t)]}.values()


def span(mesh, placements, world):
    """Over how many consecutive ranks a tensor is divided: ranks r and r + span hold the same part of it. ALL: over all ranks."""
    ranks = mesh.mesh
    divided = [d for d, p in enumerate(placements) if p != ("replicate",)]
    if not divided:
        return 1
    n = math.prod(ranks.size(d) for d in divided)
    if n == world and len(divided) == ranks.ndim:
        return ALL  # no dimension has replicas: with more ranks it would be divided over more
    replicas = ranks.permute([d for d in range(ranks.ndim) if d not in divided] + divided).reshape(-1, n).tolist()
    return n if all(r[0] % n == 0 and r == list(range(r[0], r[0] + n)) for r in replicas) else ALL


def any_saved(value):
    """Whether value contains a shard."""
    if isinstance(value, dict):
        return any(any_saved(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(any_saved(v) for v in value)
    return isinstance(value, Saved)


class Placer:
    """Places shards that were read into DTensors; refuses those that do not fit."""

    def __init__(self, found):
        self._meshes = found

    def place(self, saved, current, path):
        """saved, with each shard made a DTensor. A shard is filled into the DTensor at the same place in current, where there is
        one. current is the tracked object's present state, or None if it has none yet."""
        if hasattr(current, "state_dict") and hasattr(current, "load_state_dict"):
            return self._object(saved, current, path)
        if isinstance(saved, Saved):
            return self._shard(saved, current, path)
        if is_dtensor(current):
            if hasattr(saved, "shape"):
                raise LayoutDiffers("%s was saved unsharded and is now %s; %s" % (path, _words(part(current)), REMEDY))
            return saved
        # Only these types are rebuilt, as they may contain shards; others were pickled whole.
        if type(saved) in (dict, collections.OrderedDict):
            now = current if isinstance(current, dict) else {}
            items = ((k, self.place(v, now.get(k), "%s[%r]" % (path, k))) for k, v in saved.items())
            return type(saved)(items)
        if type(saved) in (list, tuple):
            now = current if isinstance(current, (list, tuple)) else ()
            items = (self.place(v, now[i] if i < len(now) else None, "%s[%d]" % (path, i)) for i, v in enumerate(saved))
            return type(saved)(items)
        return saved

    def _object(self, saved, current, path):
        torch = sys.modules.get("torch")
        known = torch is not None and isinstance(current, (torch.nn.Module, torch.optim.Optimizer))
        if not any_saved(saved) and not (known and self._meshes):
            return saved  # nothing to place, and no leaf that could be a shard
        # Other objects' state_dict may change them, as loaders' do: asked only where it is needed.
        held = _kinds.take(current)
        if not known and not self._meshes:
            return Placer(_each_mesh(shown(current))).place(saved, held, path)
        if known and isinstance(current, torch.optim.Optimizer) and all(isinstance(s, dict) and isinstance(s.get("state"), dict) for s in (saved, held)):
            return {k: self._of_params(v, held[k], current, path) if k == "state" else v for k, v in saved.items()}
        return self.place(saved, held, path)

    def _of_params(self, saved, held, optimizer, path):
        """An optimizer's state by parameter number. The parameter's mesh decides where the optimizer holds nothing yet."""
        params = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
        placed = {}
        for i, state in saved.items():
            p = params.get(i)
            own = Placer([(p.device_mesh, type(p))] if is_dtensor(p) else [])
            placed[i] = own.place(state, held.get(i), "%s['state'][%r]" % (path, i))
        return placed

    def _shard(self, saved, current, path):
        if current is None:
            return self._anew(saved, path)
        if not is_dtensor(current):
            raise LayoutDiffers("%s was saved as %s, and now it is a %s that is not sharded; %s" % (path, _words(saved.part), type(current).__name__, REMEDY))
        now, into = part(current), local(current)
        if not _same_layout(saved.part, now) or tuple(into.shape) != tuple(saved.local.shape):
            raise LayoutDiffers("%s was saved as %s; now it is %s; %s" % (path, _words(saved.part), _words(now), REMEDY))
        if into.dtype != saved.local.dtype:
            raise LayoutDiffers("%s was saved as %s and now it is %s" % (path, saved.local.dtype, into.dtype))
        with sys.modules["torch"].no_grad():
            _device.fill(into, saved.local)
        return current

    def _anew(self, saved, path):
        """A DTensor for a shard whose object has no value there yet, such as an optimizer before its first step."""
        p = saved.part
        fit = [(m, kind, how) for m, kind in self._meshes for how in [_on(m, p)] if how is not None]
        fit = [f for f in fit if _alike(f[0], p)] or fit
        if not fit:
            raise LayoutDiffers("%s was saved as %s; no tracked tensor is on such a mesh now; %s" % (path, _words(p), REMEDY))
        if len(fit) > 1:
            raise LayoutDiffers("%s was saved as %s; several meshes match; give their dimensions names" % (path, _words(p)))
        ((mesh, kind, how),) = fit
        torch = sys.modules["torch"]
        with torch.no_grad():
            return kind.from_local(saved.local.clone(), mesh, _placements(how), run_check=False, shape=torch.Size(p.shape), stride=p.stride)


def _alike(mesh, p):
    """Whether a mesh differs from that of a shard in nothing but this rank's place."""
    return tuple(mesh.shape) == p.mesh and (mesh.mesh_dim_names and tuple(mesh.mesh_dim_names)) == p.dims


def _on(mesh, p):
    """The placements on a mesh by which this rank holds the same part as the saved one; None: there are none."""
    at, dims = mesh.get_coordinate(), list(mesh.mesh_dim_names or range(mesh.ndim))
    placements = [("replicate",)] * len(dims)
    for name, size, place, how in zip(p.dims or range(len(p.mesh)), p.mesh, p.at or [None] * len(p.mesh), p.placements):
        if how == ("replicate",):
            continue
        i = dims.index(name) if name in dims else None
        if i is None or mesh.size(i) != size or (at and at[i]) != place:
            return None
        placements[i] = how
    return placements


def _placements(saved):
    types = sys.modules.get("torch.distributed.tensor.placement_types") or sys.modules["torch.distributed._tensor.placement_types"]
    make = {
        "shard": lambda dim: types.Shard(dim),
        "strided": lambda dim, factor: types._StridedShard(dim, split_factor=factor),
        "replicate": lambda: types.Replicate(),
        "partial": lambda op: types.Partial(op),
    }
    return [make[name](*rest) for name, *rest in saved]
