"""torch.distributed.checkpoint on Holdfast's memory and storage.

    import torch.distributed.checkpoint as dcp
    import holdfast.dcp

    reader, writer = holdfast.dcp.Reader(), holdfast.dcp.Writer()
    if reader.step:                           # 0: from the beginning
        dcp.load(state, storage_reader=reader)
    for step in range(reader.step + 1, last + 1):
        train()
        dcp.save(state, checkpoint_id="step-%d" % step, storage_writer=writer)     # or dcp.async_save

Plans and collectives are torch's own. See docs/checkpoints.md.
"""

import copy
import dataclasses
import functools
import io
import os
import re
import threading
import traceback

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _client, _device, _folder, _pickles, _planned, _sharded, _union
from ._folder import ExportError
from ._kinds import RestoreError
from ._state import Flat, Leaf, Packer, Unsupported, torch_leaf

__all__ = ["Reader", "Writer"]


def _step_of(checkpoint_id):
    numbers = re.findall(r"\d+", os.path.basename(os.path.normpath(os.fspath(checkpoint_id))))
    return int(numbers[-1]) if numbers else 0


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class Writer(StorageWriter):
    """Saves into this rank's memory. The step is the last number in checkpoint_id, or `step` if that is set.

    It is its own stager: async_save copies the state once, into the memory that outlives the process. Keep one for all
    saves. Without state in memory it writes as torch's FileSystemWriter does, to checkpoint_id or path."""

    _synchronize_after_execute = False  # stage returns once all is copied
    should_synchronize_after_execute = False

    def __init__(self, path=None, *, step=None):
        self._ck = _client.attach()
        self._elsewhere = None if self._ck.active else _FilesOf(path)
        self.step, self.saved = step, None
        self._plan, self._global = None, []
        self._lock = threading.Lock()
        self._staged = None  # copied to the slot and not announced yet: (control record, leaves)
        self._packer = Packer(self._ck._devices)  # for staged state, which is laid out before it is planned

    # Called by torch, in this order.

    def reset(self, checkpoint_id=None):
        if self._elsewhere is not None:
            self._elsewhere.reset(checkpoint_id)
        elif checkpoint_id is not None:
            self.step = _step_of(checkpoint_id) or None

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if self._elsewhere is not None:
            return self._elsewhere.writer().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._number()

    def prepare_local_plan(self, plan):
        if self._elsewhere is not None:
            return self._elsewhere.writer().prepare_local_plan(plan)
        if getattr(plan, "usable", True):
            self._plan = plan  # all that this rank holds; the plan that returns has only what this rank would write for all
        elif self._plan is None:
            raise RuntimeError("this planner keeps plans between saves: keep one holdfast.dcp.Writer for all of them too")
        return plan

    def prepare_global_plan(self, plans):
        if self._elsewhere is not None:
            return self._elsewhere.writer().prepare_global_plan(plans)
        usable = [getattr(p, "usable", True) for p in plans]
        if not any(usable) and self._global:
            return plans  # every rank has kept its plan, and with it the table
        self._global = [p if u else old for p, u, old in zip(plans, usable, self._global or plans)]
        table = _planned.table(self._global)
        return [dataclasses.replace(p, storage_data=table) for p in self._global]

    def write_data(self, plan, planner):
        if self._elsewhere is not None:
            return self._elsewhere.writer().write_data(plan, planner)
        ck, step = self._ck, self._number()
        with self._lock:
            staged, self._staged = self._staged, None
            try:
                self.saved = self._write(step, staged, plan.storage_data, planner)
            except Unsupported as e:
                self.saved = ck._refuse(step, str(e))
            except Exception:  # an error of Holdfast must not end training
                self.saved = ck._refuse(step, "taking the state: " + traceback.format_exc())
        if self.saved:
            ck._stay(step)
        return _done([WriteResult(index=i.index, size_in_bytes=0, storage_data=None) for i in plan.items])

    def finish(self, metadata, results):
        if self._elsewhere is not None:
            self._elsewhere.writer().finish(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return _step_of(checkpoint_id) > 0

    def storage_meta(self):
        return self._elsewhere.writer().storage_meta() if self._elsewhere is not None else None

    # The stager of dcp.async_save.

    def stage(self, state_dict):
        """A copy of the state, whose tensors lie in the slot. Without a slot it copies nothing, and the save is skipped."""
        if self._elsewhere is not None:
            return _copied(state_dict, lambda t: t.detach().cpu().clone())
        ck = self._ck
        ck._stay(ck._last_copied)  # a rank that is held after a save in a thread of torch waits here
        with self._lock:
            self._staged = None  # of a save that did not reach write_data
            control = ck._await_grant()
            if control is None:
                self._staged = ck._skip
                return state_dict
            try:
                staged, self._staged = self._copy(control, state_dict)
            except Unsupported as e:
                staged, self._staged = state_dict, functools.partial(ck._refuse, reason=str(e))
            return staged

    def synchronize_staging(self):
        """Returns at once: stage has copied everything."""

    def close(self):
        """Nothing is held."""

    def _copy(self, control, state_dict):
        """The state with its tensors in the slot, and what write_data needs to announce it."""
        ck, flat, order = self._ck, Flat(), {}
        _copied(state_dict, lambda t: order.setdefault(id(t), (t, flat.tensor(_plain(t)))) and t)
        (layout, *_), _ = self._packer.plan(flat)
        if layout.end > ck._arena.header.state_bytes:
            return state_dict, functools.partial(ck._too_large, needed=layout.end)
        at = ck._arena.data_offset(control.slot)
        if not ck._prefault(control.slot, at, layout.end):
            raise Unsupported("no memory for %d bytes of the arena; raise the container's memory limit" % layout.end)
        ck._packer.overwritten(at)
        views = self._packer.place(ck._arena.map, at, flat, layout)
        there = [t.source if v is None else v for t, v in zip(flat.leaves, views)]
        staged = _copied(state_dict, lambda t: there[order[id(t)][1]])
        return staged, (control, [Leaf(old.spec, old.nbytes, t) for old, t in zip(flat.leaves, there)])

    # The result of a save.

    def _number(self):
        if not isinstance(self.step, int) or self.step < 1:
            raise ValueError("holdfast.dcp.Writer needs to know the step: end checkpoint_id in its number (checkpoint_id=\"step-100\"), or set writer.step, from 1")
        return self.step

    def _write(self, step, staged, table, planner):
        ck, flat = self._ck, Flat()
        if callable(staged):  # why there was nothing to stage into
            return staged(step)
        if staged is None:
            control, refused = ck._granted(step)
            if control is None:
                return refused
        else:
            control, leaves = staged
            if control.grant <= ck._record.grant or step <= ck._last_copied:
                return ck._decline(step, "another save took its place")
            for leaf in leaves:
                flat.tensor(leaf)
        held = []
        for item in self._plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                held.append((item.index.fqn, None, data.getvalue()))
            else:
                held.append((item.index.fqn, item.tensor_data.chunk.offsets, data.detach()))
        flat.add(_planned.NAME, _planned.tree(table, held))
        return ck._keep(step, control, flat, stay=False)


def _plain(t):
    """A tensor's or shard's own memory, as a leaf in row-major order."""
    leaf = torch_leaf(_sharded.local(t).detach())
    kind, dtype, shape, _ = leaf.spec
    return Leaf((kind, dtype, shape, None), leaf.nbytes, leaf.source)


def _copied(value, of):
    """The same containers with of(tensor) in place of each tensor, and copies of all other values."""
    if isinstance(value, torch.Tensor):
        made = of(value)
        if made is value or not _sharded.is_dtensor(value) or _sharded.is_dtensor(made):
            return made
        return type(value).from_local(made, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride())
    if isinstance(value, dict):
        return {k: _copied(v, of) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(v, of) for v in value)
    return copy.deepcopy(value)


class _FilesOf:
    """torch's own files, for a process without state in memory."""

    def __init__(self, path):
        self._path, self._writer = path, None

    def reset(self, checkpoint_id):
        path = self._path if checkpoint_id is None else checkpoint_id
        if path is not None:
            self._writer = FileSystemWriter(path)
            self._writer.reset(path)

    def writer(self):
        if self._writer is None:
            self.reset(None)
        if self._writer is None:
            raise RuntimeError("this process keeps no state in memory (it is not a rank of a Holdfast job with holdfast.dev/state-size), so holdfast.dcp.Writer needs a path for files: give checkpoint_id or Writer(path)")
        return self._writer


class Reader(StorageReader):
    """Loads the step that this generation starts from, out of this rank's memory. Without such a step, or if the layout differs,
    it reads path (or checkpoint_id): a job's folder in storage, or a folder that stock torch wrote."""

    def __init__(self, path=None, *, step=None):
        self._ck, self._path, self._wanted = _client.attach(), path, step
        self._stock = self._memory = None
        self._files, self._all = [], None

    @property
    def step(self):
        """The step that a load would return; 0: none, and training starts from the beginning."""
        if self._ck.resume_step:
            return self._ck.resume_step
        if self._path is None or not os.path.isdir(self._path):
            return 0
        if os.path.exists(os.path.join(self._path, ".metadata")):
            return _step_of(self._path)
        found = [s.step for s in _folder.steps(self._path)[0] if self._wanted in (None, s.step)]
        return found[-1] if found else 0

    # Called by torch, in this order.

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._path = checkpoint_id

    def read_metadata(self):
        self._stock = self._memory = self._all = None
        if self._ck.resume_step:
            state, self._header = self._ck._sealed(self._ck.resume_step)
            self._memory = self._held(lambda: state, "step %d in memory" % self._ck.resume_step)
            return _planned.metadata(self._memory.table)
        if self._path is None:
            raise RestoreError("there is no step to load: this process starts from the beginning and Reader has no path; check reader.step first")
        if os.path.exists(os.path.join(self._path, ".metadata")):
            self._stock = FileSystemReader(self._path)
            return self._stock.read_metadata()
        self._open(self._wanted)
        return _planned.metadata(self._all[0].table)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        if self._stock is not None:
            self._stock.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan):
        if self._stock is not None:
            return self._stock.prepare_local_plan(plan)
        if self._memory is not None:
            lacks = [i.storage_index for i in plan.items if _where(i.storage_index) not in self._memory.items]
            if not lacks:
                return plan
            self._instead(lacks[0])
        return plan

    def prepare_global_plan(self, plans):
        return plans if self._stock is None else self._stock.prepare_global_plan(plans)

    def read_data(self, plan, planner):
        if self._stock is not None:
            return self._stock.read_data(plan, planner)
        for item in plan.items:
            data = self._find(item.storage_index)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data))
                continue
            for dim, (at, n) in enumerate(zip(item.storage_offsets, item.lengths)):
                data = data.narrow(dim, at, n)
            target = planner.resolve_tensor(item).detach()
            if target.shape != data.shape:
                raise RestoreError("%s: %s were saved, %s are to be loaded" % (item.storage_index.fqn, list(data.shape), list(target.shape)))
            _device.fill(target, data)
            planner.commit_tensor(item, target)
        if self._ck.resume_step:
            self._ck._report_restored(self._ck.resume_step)
        self._memory = self._all = None  # no view of the slot may remain: it is granted again
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return os.path.isdir(checkpoint_id)

    # Where a step is read from.

    def _open(self, number):
        step, _ = _folder.choose(self._path, number)
        self._files = [_folder.RankFile(self._path, step, rank) for rank in range(len(step.ranks))]
        for file in self._files[_rank() :: _world()]:  # each rank verifies some of them, all ranks together verify all
            file.check_data()
        load = functools.partial(_pickles.load, trust=False)
        self._all = [self._held(lambda f=f: _union.State(f.map, _folder.DATA, f.length, load), f.path) for f in self._files]

    def _held(self, state, where):
        try:
            return _planned.Held(state(), where)
        except (ValueError, KeyError, TypeError, IndexError) as e:
            raise RestoreError("%s cannot be loaded: %s" % (where, e)) from e

    def _instead(self, lacks):
        """Reads storage if this rank's memory lacks a part that it is to load."""
        step = self._ck.resume_step
        what = "step %d was saved with another layout: this rank's memory has no part of %s at %s" % (step, lacks.fqn, lacks.offset and list(lacks.offset))
        if self._path is None:
            raise RestoreError(what + "; start with the layout that it was saved with, or give Reader the job's folder in storage")
        try:
            self._open(step)
        except ExportError as e:
            raise RestoreError("%s, and storage cannot be read: %s" % (what, e)) from e
        mine = self._files[_rank()] if _rank() < len(self._files) else None
        if mine is None or (mine.length, mine.crc) != (self._header.length, self._header.crc):
            raise RestoreError("%s, and step %d in %s differs from the copy in memory" % (what, step, self._path))
        self._memory = None

    def _find(self, index):
        """This rank's item, if as many ranks saved the step; otherwise the lowest rank's."""
        if self._memory is not None:
            return self._memory.items[_where(index)]
        own = self._all[_rank() :][:1] if len(self._all) == _world() else []
        for held in [*own, *self._all]:
            if _where(index) in held.items:
                return held.items[_where(index)]
        raise RestoreError("%s at %s is in no rank's file of %s" % (index.fqn, index.offset, self._path))


def _where(index):
    return index.fqn, None if index.offset is None else tuple(index.offset)


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


def _world():
    return dist.get_world_size() if dist.is_initialized() else 1
