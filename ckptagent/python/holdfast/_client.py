"""attach, track, restore, save: what a training script calls.

`save` makes one copy of the state, writes one small record and sends one datagram. `save` takes no lock and runs no
collective. `save` waits only for a free slot, for a bounded time. `save` raises no error of Holdfast: a state that cannot be
kept is counted and reported once, and training goes on. `restore` raises RestoreError if the whole step that this generation
starts from cannot be restored.
"""

import functools
import gc
import json
import os
import socket
import sys
import threading
import time
import traceback

from . import _arena, _device, _donor, _memory, _overlap, _rng, _sharded, _skip_init
from ._arena import Arena, ArenaError, Client
from ._fill import copies_from_views, fill
from ._kinds import GroupsDiffer, RestoreError, same_groups
from ._phase import Phase
from ._prove import prove
from ._saved import Saved
from ._state import Flat, Packer, UnknownKind, Unpacker, Unsupported, assign

_RNG = "__rng__"
_BUILT = "__built__"  # the random states at the ends of skip_init blocks
OWN = {_RNG, _BUILT}
# Longer than the agent's interval of reading the arena, so that a lost datagram costs no save.
_SAVE_WAIT = 1.0
# How long a client is held without a new record of the agent, which writes one each second while it holds.
_HOLD_SILENCE = 15.0
_HOLD_LOOK = 0.05
_PREFAULT_FROM = 8 << 20
_PREFAULT_PIECE = 16 << 20
# How long restore waits until the granted slot is touched: save touches the pages that are not.
_TOUCH_WAIT = 10.0


def _say(text):
    print("holdfast: " + text, file=sys.stderr, flush=True)


def _number(name):
    text = os.environ.get(name, "")
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        raise ArenaError("environment variable %s=%r is not a number" % (name, text)) from None


_attached = None


def attach() -> "Checkpoint":
    """The checkpoint of this process; the same object each time. Its calls do nothing without an agent, and in a forked child."""
    global _attached
    if _attached is None or _attached._pid != os.getpid() and not _attached.active:
        _attached = Checkpoint()
    return _attached


class Checkpoint:
    """One per training process. Get it by attach()."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._tracked = {}
        self._rng = False
        self._built, self._blocks, self._left = [], 0, []  # of skip_init: random states, number of blocks, parameters without values
        self._said = set()
        self._devices = _device.Devices(_say)
        self._packer = Packer(self._devices)
        self._ready = {}  # slot -> number of its bytes whose pages are known to be present
        self._huge = True  # whether the kernel is quick to provide huge pages
        self._touched = None  # set once the slots that are needed first are present
        self._touching = threading.Lock()  # guards the next
        self._later = []  # slots that are touched after the first save
        self._socket = None
        self._arena = self._overlap = None
        self._publishing = threading.Lock()
        self._last_copied = 0
        self._waited_in_vain = 0  # grant for which a wait timed out

        self._to = os.environ.get("HOLDFAST_SOCKET", "")
        self._rank = _number("HOLDFAST_LOCAL_RANK")
        self._generation = _number("HOLDFAST_GENERATION")
        self._restore_step = _number("HOLDFAST_RESTORE_STEP")
        self._restore_branch = _number("HOLDFAST_RESTORE_BRANCH")
        self._donor = _number("HOLDFAST_DONOR") - 1
        path = os.environ.get("HOLDFAST_ARENA", "")
        if not self._to and not path:
            if os.environ.get("HOLDFAST_CONTAINER"):
                _say("this process keeps no state in memory and has no standby: it is not a rank, as no launcher that Holdfast supports started it. Start the script with torchrun, or python -m torch.distributed.run; without a launcher a failure restarts the container's whole command")
            return  # not in a Holdfast job
        if self._to:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        if not path:
            _say("state in memory is off: no arena (set annotation holdfast.dev/state-size to the size per rank); a restart begins where the script itself begins")
        else:
            self._open(path)
        self._send("attached")

    def _open(self, path):
        try:
            self._arena = Arena(path)
        except ArenaError as e:
            if self._restore_step:
                raise
            _say("state in memory is off: %s" % e)
            return
        old = self._arena.client()
        self._record = Client(
            seq=old.seq if old else 0, slot=_arena.NO_SLOT, generation=self._generation, grant=0, copy_step=0, length=0, step=0,
            restored_step=0, pid=self._pid, flags=_arena.FLAG_ATTACHED, saves=0, skipped=0, needed=0, refused=0,
        )  # fmt: skip
        self._overlap = _overlap.Overlap(self._devices, self._step_begins, self._judged, _say)
        _overlap.follow(self)
        self._publish()
        self._prefault_ahead()

    # What the agent receives.

    def _publish(self, **changes):
        with self._publishing:  # holdfast.dcp saves in a thread of torch
            self._record = self._record._replace(seq=self._record.seq + 1, **changes)
            if changes.get("step"):  # the script trains, even if it caught a RestoreError
                self._record = self._record._replace(flags=self._record.flags & ~_arena.FLAG_RESTORING)
            self._arena.publish(self._record)

    def _send(self, event, **fields):
        if self._socket is None:
            return False
        message = {"v": 1, "rank": self._rank, "gen": self._generation, "pid": self._pid, "ev": event}
        message.update(fields)
        try:
            self._socket.sendto(json.dumps(message, separators=(",", ":")).encode(), self._to)
            return True
        except OSError:
            return False  # the arena has the same record; the agent reads it there too

    def _once(self, key, text):
        if key not in self._said:
            self._said.add(key)
            _say(text)

    # What a script calls.

    @property
    def active(self) -> bool:
        """Whether state is kept in memory."""
        return self._arena is not None

    @property
    def resume_step(self) -> int:
        """The step that this generation starts from and that restore() loads; 0: none."""
        return self._restore_step

    def skip_init(self) -> _skip_init.SkipInit:
        """A block in which parameters get no initial values if restore() overwrites them. All of them must be tracked."""
        if self._arena is None or os.getpid() != self._pid:
            return _skip_init.SkipInit((), 1, self._left)
        if self._restore_step and not self._blocks:
            self._built = self._saved_built()
        self._blocks += 1
        return _skip_init.SkipInit(self._built, self._blocks - 1, self._left)

    def _saved_built(self):
        """The random states in the step that restore() will load; none if another rank gives this one its state."""
        found = self._arena.find(self._restore_step, self._restore_branch)
        try:
            state = self._unpacker(*found) if found else None
            return list(state.value(_BUILT)) if state and _BUILT in state.names() else []
        except (ValueError, KeyError):  # restore() reports it
            return []

    def track(self, *, rng: bool = False, **objects: object) -> None:
        """Names the parts of the state: objects with state_dict and load_state_dict, tensors, numpy arrays, bytearrays,
        and dicts and lists of these. rng=True adds the random states of Python, torch and numpy.

        In a Holdfast job it checks each part once, and raises TrackError for one that could never be restored. A part that cannot
        be kept as it is now is reported once."""
        for name, value in objects.items():
            if name in OWN:
                raise ValueError("the name %r is reserved for Holdfast" % name)
            if self._arena is not None:
                self._prove(name, value)
            self._tracked[name] = value
        self._rng = self._rng or bool(rng)

    def _prove(self, name, value):
        doubt = prove(name, value)
        if doubt:
            self._once(doubt.splitlines()[0], "no step is kept until this changes: %s" % doubt)

    def restore(self) -> int:
        """Brings every tracked object to the step that this generation starts from and returns that step; 0: none."""
        step = self._restore_step
        if step and os.getpid() == self._pid:
            if self._overlap is not None:
                self._overlap.settle()
            self._restore(step)
        self._report_restored(step)
        return step

    def _report_restored(self, step):
        if os.getpid() != self._pid:
            return
        if self._arena is not None:
            flags = _arena.FLAG_RESTORED | (_arena.FLAG_GROUPED if _donor.grouped() else 0)
            self._publish(restored_step=step, flags=(self._record.flags | flags) & ~_arena.FLAG_RESTORING, step=step)
            if self._touched is not None and not step:  # else training goes on at once
                self._touched.wait(_TOUCH_WAIT)
        self._send("restored", step=step)
        self._last_copied = max(self._last_copied, step)

    def _sealed(self, step):
        """The state that this generation starts from, and the header of its slot."""
        if self._arena is None:
            raise RestoreError("restoring step %d: this process has no arena" % step)
        self._publish(flags=self._record.flags | _arena.FLAG_RESTORING)
        found = self._arena.find(step, self._restore_branch)
        if found is None:
            raise RestoreError("restoring step %d%s: the arena holds %s" % (step, _of(self._restore_branch), self._arena.sealed_steps() or "no sealed step"))
        slot, header = found
        try:
            return self._unpacker(slot, header), header
        except (ValueError, KeyError) as e:
            raise RestoreError("restoring step %d from slot %d: %s" % (step, slot, e)) from e

    def _unpacker(self, slot, header):
        return Unpacker(self._arena.map, self._arena.data_offset(slot), header.length, self._packer.pool)

    def _whole(self, step):
        """The state that this generation starts from, and whether another rank gave it. All ranks take part where one gives it."""
        if self._donor < 0 or self._arena is None:
            return self._sealed(step)[0], False
        self._publish(flags=self._record.flags | _arena.FLAG_RESTORING)
        found = self._arena.find(step, self._restore_branch)
        given = _donor.exchange(step, self._donor, self._tracked, self._arena, found)
        if given is None:
            return self._sealed(step)[0], False
        random = "; the random states follow from this rank's seed, its number and the step" if self._rng else ""
        _say("restoring step %d: rank %d gave its state to this rank%s" % (step, given.donor, random))
        return Unpacker(given.data, 0, len(given.data), self._packer.pool), True

    def _restore(self, step):
        state, given = self._whole(step)
        names = set(self._tracked) | ({_RNG} if self._rng else set())
        missing, extra = names - set(state.names()), set(state.names()) - names - OWN
        if missing:
            raise RestoreError("restoring step %d: it holds no %s; the script that saved it tracked %s" % (step, ", ".join(sorted(missing)), ", ".join(sorted(state.names()))))
        if extra:
            _say("restoring step %d: %s was saved but is not tracked now" % (step, ", ".join(sorted(extra))))
        placer = _sharded.Placer(_sharded.meshes(self._tracked))
        for name in self._tracked:
            try:
                self._bring_back(state, name, placer)
            except (_sharded.LayoutDiffers, UnknownKind, GroupsDiffer) as e:
                raise RestoreError("restoring step %d: %s" % (step, e)) from e
            except RestoreError:
                raise
            except Exception as e:  # raised by the object's load_state_dict, which does not know the name
                raise RestoreError("restoring step %d: %s rejected it: %s: %s" % (step, name, type(e).__name__, e)) from e
        if self._left:
            _skip_init.check(self._left, self._tracked)
        if self._rng and given:
            _rng.derive(os.environ.get("RANK", ""), step)
        elif self._rng:
            _rng.put(state.value(_RNG))

    def _bring_back(self, state, name, placer):
        current = self._tracked[name]
        borrow = copies_from_views(current)
        saved = placer.place(state.value(name, borrow), current, name)
        same_groups(name, current, saved)
        if borrow:
            if not fill(current, saved, self._packer.pool):
                current.load_state_dict(saved)
        elif assign(current, saved) is not current:
            raise RestoreError("%s is a %s, which cannot be changed in place; track a dict that holds it" % (name, type(current).__name__))

    def step(self, step: int) -> None:
        """Reports that `step` steps are finished; save reports it too."""
        if os.getpid() != self._pid:
            return
        if self._arena is not None:
            self._publish(step=step)
        self._send("step", step=step)

    def phase(self, name: str, *, up_to: float) -> Phase:
        """Says that this rank makes no step for at most up_to seconds, until the returned Phase is closed or its block ends."""
        return Phase(name, up_to)

    def save(self, step: int, *, blocking: bool = False) -> Saved:
        """Copies the tracked state into memory that outlives this process. Returns a Saved, true if the state was copied, or is
        being copied during training. blocking=True copies all of it before the call returns."""
        if not isinstance(step, int) or step < 1:
            raise ValueError("save(%r): a step is the number of finished steps, from 1" % (step,))
        if os.getpid() != self._pid:
            return Saved(step, False, "called in a child process")
        if self._arena is None:
            self._send("step", step=step)
            return Saved(step, False, "state in memory is off")
        try:
            saved = self._save(step, blocking)
        except Unsupported as e:
            saved = self._refuse(step, str(e))
        except Exception:  # an error of Holdfast must not end training
            saved = self._refuse(step, "taking the state: " + traceback.format_exc())
        return saved

    def _save(self, step, blocking):
        control, refused = self._granted(step)
        if control is None:
            return refused
        flat = self._flatten()
        if not self._record.span:
            self._publish(span=_donor.span(self._tracked, flat.leaves))
            hidden = _donor.hidden(self._tracked, flat.leaves)
            if hidden:
                self._once("hidden", hidden)
        return self._keep(step, control, flat, aside=not blocking)

    def _granted(self, step):
        """The agent's grant to write a slot, and None; or None, and the Saved of a save without a grant."""
        if step <= self._last_copied:
            self._once("order", "save(%d) after save(%d): steps must rise; not saved" % (step, self._last_copied))
            return None, self._decline(step, "steps must rise")
        control = self._await_grant()
        return control, None if control is not None else self._skip(step)

    def _skip(self, step):
        self._publish(step=step, skipped=self._record.skipped + 1)
        self._send("step", step=step)
        return Saved(step, False, "no free slot")

    def _keep(self, step, control, flat, stay=True, aside=False):
        """Copies an unpacked state into the slot, announces it, and waits while the agent holds this rank. With aside, tensors of
        optimizers may be copied during training."""
        plan, needed = self._packer.plan(flat)
        if needed > self._arena.header.state_bytes:
            return self._too_large(step, needed)
        at = self._arena.data_offset(control.slot)
        if not self._prefault(control.slot, at, needed):
            return self._refuse(step, "no memory for %d bytes of the arena; raise the container's memory limit" % needed)
        self._devices.register((leaf.source for leaf in flat.leaves), self._slots)
        aside = aside and not (control.barrier_step and step >= control.barrier_step)
        mode, trust, leaves = self._overlap.plan(plan[0], flat, self._tracked.values(), aside)
        left = leaves if mode == _overlap.OVERLAP else ()
        views = self._packer.pack(self._arena.map, at, flat, plan, left)
        pairs = [] if mode == _overlap.BLOCK else [_overlap.Pair(flat.leaves[i].source, views[i]) for i in leaves]
        saved = Saved(step, True, "", self._arena, control.slot, control.grant, self._generation)
        self._last_copied = step
        if left and self._keep_aside(saved, control, needed, pairs, leaves, trust):
            return saved
        self._announce(saved, control, needed, step=step)
        if mode == _overlap.PROOF:
            self._overlap.prove(pairs, leaves, trust)
        if stay:
            self._stay(step)
        return saved

    def _keep_aside(self, saved, control, needed, pairs, leaves, trust):
        """Begins to copy the rest during training. False if that failed and the rest was copied before the return."""

        def drop():
            saved._drop("its source changed while it was copied during training")
            self._once("dropped", "step %d is not kept: something changed parameters or optimizer state between save and the next optimizer step" % saved.step)
            self._publish(overlap_step=0, overlap_grant=0, dropped=self._record.dropped + 1, **self._blocking())

        try:
            aside = self._devices.aside([(p.view, p.source) for p in pairs])
        except Exception as e:
            self._overlap.give_up(e)
            with self._devices.copied([(p.view, p.source) for p in pairs]):
                pass
            return False
        self._publish(step=saved.step, overlap_step=saved.step, overlap_grant=control.grant, **self._blocking())
        self._send("step", step=saved.step)
        self._overlap.begin(saved.step, pairs, leaves, trust, aside, lambda: self._announce(saved, control, needed, overlapped=self._record.overlapped + 1), drop)
        return True

    def _announce(self, saved, control, needed, **changes):
        """Announces a complete copy. Also called by a copying thread during training, so it does not report progress."""
        _memory.barrier()
        self._publish(
            slot=control.slot, grant=control.grant, branch=control.branch, copy_step=saved.step, length=needed, saves=self._record.saves + 1,
            overlap_step=0, overlap_grant=0, **self._blocking(), **changes,
        )  # fmt: skip
        self._send("copied", step=saved.step, slot=control.slot, bytes=needed)
        with self._touching:
            slots, self._later = self._later, []
        if slots:
            self._in_thread(lambda: all(self._touch(i) for i in slots))

    def _blocking(self):
        return {"blocking": self._overlap.blocking, "reason": self._overlap.reason}

    def _step_begins(self, step):
        """Called as an optimizer's step begins, once all copies are made: waits here if the agent holds this rank in save."""
        self._stay(step)

    def _judged(self):
        if (self._record.blocking, self._record.reason) != (self._overlap.blocking, self._overlap.reason):
            self._publish(**self._blocking())

    def _forked(self):
        self._publishing, self._touching = threading.Lock(), threading.Lock()  # a thread of the parent may have held the old ones
        self._overlap.forget()

    def _stay(self, step):
        """Waits while the agent holds ranks that have copied this step: a step that all ranks hold is being copied elsewhere."""
        seq, changed = None, 0.0
        while True:
            c = self._arena.control()
            if c is None or c.generation != self._generation or not c.barrier_step or step < c.barrier_step:
                return
            now = time.monotonic()
            if c.seq != seq:
                seq, changed = c.seq, now
            elif now - changed > _HOLD_SILENCE:
                self._once("held", "step %d: held in save, and the agent no longer responds; training goes on" % step)
                return
            time.sleep(_HOLD_LOOK)

    def _decline(self, step, reason):
        self._publish(step=max(step, self._record.step))
        self._send("step", step=step)
        return Saved(step, False, reason)

    def _refuse(self, step, reason):
        self._once(reason.splitlines()[0], "step %d is not kept: %s" % (step, reason))
        self._publish(step=step, refused=self._record.refused + 1)
        self._send("step", step=step)
        return Saved(step, False, reason)

    def _too_large(self, step, needed):
        have = self._arena.header.state_bytes
        self._once("size", "state needs %d bytes per rank but only %d are kept: set annotation holdfast.dev/state-size to %s or more; training goes on without saves" % (needed, have, _quantity(needed)))
        self._publish(step=step, refused=self._record.refused + 1, needed=needed)
        self._send("step", step=step, bytes=needed)
        return Saved(step, False, "state needs %d bytes, the slot has %d" % (needed, have))

    def _await_grant(self):
        """A grant that is not used yet, or None after a bounded time. After a timeout it does not wait for the same grant
        again."""
        self._overlap.settle()  # an overlapped copy has the grant until it ends
        deadline, pause = None, 0.0001
        while True:
            c = self._arena.control()
            if c is not None and c.generation == self._generation and c.slot != _arena.NO_SLOT and c.grant > self._record.grant:
                self._waited_in_vain = 0
                return c
            if self._waited_in_vain and self._waited_in_vain == self._record.grant + 1:
                return None
            now = time.monotonic()
            if deadline is None:
                deadline = now + _SAVE_WAIT
            if now >= deadline:
                self._waited_in_vain = self._record.grant + 1
                self._once("slow", "no free slot within %.1f s: saves are skipped until the agent grants one" % _SAVE_WAIT)
                return None
            time.sleep(pause)
            pause = min(pause * 2, 0.002)

    def _prefault(self, slot, at, needed):
        """Whether the slot's pages are present. Touches them once before the copy, which would be slow without, or end by
        SIGBUS."""
        if needed > self._ready.get(slot, 0):
            if not _memory.populate(self._arena.map, at, needed):
                return False
            self._ready[slot] = needed
        return True

    def _prefault_ahead(self):
        """Touches large slots while the script builds its model: first the granted one, for which a process that restores no step
        waits, then the others. A process that restores a step touches these after its first save: they would take processors from its
        first step. The threads are short-lived and hold no lock of Python."""
        if self._arena.header.stride < _PREFAULT_FROM:
            return
        control = self._arena.control()
        first = [control.slot] if control is not None and control.slot < self._arena.slots else []
        others = [i for i in range(self._arena.slots) if i not in first]
        touched = threading.Event()

        def run():
            try:
                there = all(self._touch(i) for i in first)
            finally:
                touched.set()
            if not there:
                return
            with self._touching:
                if self._restore_step and first and not self._record.saves:
                    self._later = others
                    return
            all(self._touch(i) for i in others)

        if self._in_thread(run):
            self._touched = touched

    def _in_thread(self, run):
        """Whether a thread runs it; if the container allows no more, save touches the pages."""
        try:
            threading.Thread(target=run, name="holdfast-prefault", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _slots(self):
        """Address, size and touching function of each slot, for registration with the driver. The slot that is needed first comes
        first."""
        control, size = self._arena.control(), self._arena.header.stride
        first = control.slot if control is not None and control.slot < self._arena.slots else 0
        slots = [(first + i) % self._arena.slots for i in range(self._arena.slots)]
        return [(self._arena.address(i), size, functools.partial(self._touch, i)) for i in slots]

    def _touch(self, slot):
        """Touches a slot piece by piece, so that a caller that needs the slot meanwhile waits for one piece at most."""
        at, size = self._arena.data_offset(slot), self._arena.header.stride
        if self._ready.get(slot, 0) >= size:
            return True
        for part in range(0, size, _PREFAULT_PIECE):
            piece = self._arena.map, at + part, min(_PREFAULT_PIECE, size - part)
            self._huge = self._huge and _memory.collapse(*piece)
            if not _memory.populate(*piece):
                return False  # save will fail the same way and report it
        self._ready[slot] = size
        return True

    def _flatten(self):
        """Unpacks the state, without garbage collection: its many small objects are freed soon."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            flat = Flat()
            for name, value in self._tracked.items():
                flat.add(name, value)
            if self._rng:
                flat.add(_RNG, _rng.get())
            if self._built:
                flat.add(_BUILT, self._built)
            return flat
        finally:
            if collecting:
                gc.enable()


def _of(branch):
    return " of branch %d" % branch if branch else ""


def _quantity(n):
    """The smallest whole number of Mi that holds n bytes, as a Kubernetes quantity."""
    return "%dMi" % -(-n // (1 << 20))
