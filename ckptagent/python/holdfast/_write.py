"""Writes a Union to files that torch and safetensors read without Holdfast.

A file is written under a temporary name beside the requested one, and renamed once it is complete.
"""

import contextlib
import io
import math
import os
import pickle
import shutil
import warnings

from . import _union
from ._folder import ExportError
from ._pickles import Left


@contextlib.contextmanager
def _whole_or_not(out):
    """A path to write to. It is renamed to out at the end, or removed after an error."""
    part = "%s.%d.part" % (out, os.getpid())
    try:
        yield part
        if os.path.lexists(out):
            raise ExportError("%s was created meanwhile: choose another path" % out)
        os.rename(part, out)
    except BaseException:
        if os.path.isdir(part):
            shutil.rmtree(part, ignore_errors=True)
        elif os.path.lexists(part):
            os.unlink(part)
        raise
    _sync(os.path.dirname(os.path.abspath(out)))


def _sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def dcp(union, out):
    """A folder for torch.distributed.checkpoint.load. Holds one tensor's part in memory at a time."""
    import torch.distributed.checkpoint as checkpoint

    with _whole_or_not(out) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to save in a single process")
        writer = checkpoint.FileSystemWriter(part, thread_count=1, per_thread_copy_ahead=0)
        checkpoint.save({}, storage_writer=writer, planner=_planner(union))


def _planner(union):
    import torch
    from torch.distributed.checkpoint import metadata as m
    from torch.distributed.checkpoint import planner as p

    class Planner(p.SavePlanner):
        """Plans all entries as if this process held them all, and provides each when it is written."""

        def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
            self._sources, self._described, items = {}, {}, []
            for name, entry in union.entries.items():
                if isinstance(entry, _union.Value):
                    if not _nothing(entry.value):
                        items.append(p.WriteItem(index=m.MetadataIndex(name), type=p.WriteItemType.BYTE_IO))
                        self._sources[name, None] = entry.value
                        self._described[name] = m.BytesStorageMetadata()
                else:
                    items += self._parts(name, entry)
            self._items = items

        def _parts(self, name, entry):
            properties, chunks = m.TensorProperties(dtype=getattr(torch, entry.dtype)), []
            for region, tensor in entry.parts:
                chunk = m.ChunkStorageMetadata(offsets=torch.Size(region.offsets), sizes=torch.Size(region.sizes))
                self._sources[name, chunk.offsets] = (region, tensor)
                chunks.append(chunk)
                data = p.TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(entry.shape))
                yield p.WriteItem(index=m.MetadataIndex(name, chunk.offsets, len(chunks) - 1), type=p.WriteItemType.SHARD, tensor_data=data)
            self._described[name] = m.TensorStorageMetadata(properties=properties, size=torch.Size(entry.shape), chunks=chunks)

        def create_local_plan(self):
            return p.SavePlan(self._items)

        def create_global_plan(self, all_plans):
            paths = {name: tuple(int(x) if isinstance(x, _union.Index) else str(x) for x in union.entries[name].path) for name in self._described}
            return all_plans, m.Metadata(state_dict_metadata=self._described, planner_data=paths)

        def finish_plan(self, new_plan):
            return new_plan

        def resolve_data(self, write_item):
            source = self._sources[write_item.index.fqn, write_item.index.offset]
            if write_item.type != p.WriteItemType.BYTE_IO:
                return _union.narrow(*source)
            data = io.BytesIO()
            torch.save(source, data)
            return data

    return Planner()


def _nothing(value):
    return isinstance(value, dict) and not value


class _Whole:
    """Assembles tensors; those that share memory once."""

    def __init__(self, union):
        self._made = {}
        import torch

        need = sum(math.prod(e.shape) * getattr(torch, e.dtype).itemsize for e in union.entries.values() if isinstance(e, _union.Tensor) and not _is_view(e))
        have = _available()
        if have is not None and need > have:
            raise ExportError("the sharded tensors need %d bytes when assembled, and this machine has %d available: export --to dcp, which needs memory for one tensor" % (need, have))

    def tensor(self, entry):
        import torch

        made_of = (entry.dtype, entry.shape, tuple((r.offsets, t.data_ptr(), t.shape) for r, t in entry.parts))
        if math.prod(entry.shape) and made_of in self._made:
            return self._made[made_of], False
        if _is_view(entry):
            whole = entry.parts[0][1]
        else:
            whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            for region, tensor in entry.parts:
                whole[tuple(slice(at, at + n) for at, n in zip(region.offsets, region.sizes))] = _union.narrow(region, tensor)
        self._made[made_of] = whole
        return whole, True


def _is_view(entry):
    return len(entry.parts) == 1 and tuple(entry.parts[0][1].shape) == entry.shape


def _available():
    """Bytes of memory that are available now; None if unknown."""
    try:
        with open("/proc/meminfo") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def torch_file(union, out):
    """A file for torch.load(weights_only=True): the tracked state, with whole tensors in place of shards."""
    import torch

    root, whole = {}, _Whole(union)
    for entry in union.entries.values():
        if isinstance(entry, _union.Value):
            value = _union.plain(entry.value)
            if isinstance(value, Left):
                union.leave(entry.path, value.name)
                continue
        else:
            value, _ = whole.tensor(entry)
        at = root
        for x in entry.path[:-1]:
            at = at.setdefault(x, {})
            if not isinstance(at, dict):
                raise ExportError("%s is a value on one rank and holds others on another, which one file cannot represent: export --to dcp" % _union.key(entry.path))
        if _nothing(value):
            at.setdefault(entry.path[-1], {})
        else:
            at[entry.path[-1]] = value
    with _whole_or_not(out) as part:
        with open(part, "wb") as f:
            torch.save(_lists(root), f)
        _sync(part)
        try:
            torch.load(part, weights_only=True, mmap=True)
        except pickle.UnpicklingError as e:
            raise ExportError("PyTorch %s cannot read this with weights_only (PyTorch 2.4 accepts no bytes): export with a newer one, or --to dcp or safetensors: %s" % (torch.__version__, _why(e))) from e


def _why(e):
    """The line of torch's advice that names the rejected type."""
    return next((line for line in str(e).splitlines() if "WeightsUnpickler" in line), str(e).splitlines()[0])


def _lists(node):
    """Turns dicts whose keys are list indices into lists."""
    if not isinstance(node, dict):
        return node
    if node and all(isinstance(k, _union.Index) for k in node):
        return [_lists(node.get(i)) for i in range(max(node) + 1)]
    return {int(k) if isinstance(k, _union.Index) else k: _lists(v) for k, v in node.items()}


def safetensors(union, out):
    """A file of tensors only. Tensors that share memory are written once; the file's metadata has their other names."""
    try:
        from safetensors.torch import save_file
    except ImportError as e:
        raise ExportError("--to safetensors needs the package safetensors, which this Python lacks: pip install safetensors") from e
    tensors, names, also, whole = {}, {}, {}, _Whole(union)
    for name, entry in union.entries.items():
        if isinstance(entry, _union.Value):
            if not _nothing(entry.value):
                union.leave(entry.path, "no tensor")
            continue
        tensor, new = whole.tensor(entry)
        if new:
            tensors[name], names[id(tensor)] = tensor, name
        else:
            also[name] = names[id(tensor)]
    with _whole_or_not(out) as part:
        save_file(tensors, part, metadata={"format": "pt", **also})
        _sync(part)


def write(to, union, out):
    """Writes a complete out or raises ExportError."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        WRITERS[to](union, out)
    except CheckpointException as e:  # not a subclass of Exception
        raise ExportError("%s: writing it: %s" % (out, "; ".join(str(why) for why, _ in e.failures.values()))) from e
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as e:
        if isinstance(e, ExportError):
            raise
        raise ExportError("%s: writing it: %s" % (out, e)) from e


WRITERS = {"dcp": dcp, "torch": torch_file, "safetensors": safetensors}
