"""Copies tensors from CUDA devices while training goes on, with HOLDFAST_OVERLAP=1 and HOLDFAST_REGISTER=1, and detects torn
copies.

Tensors of an optimizer should not change between two of its steps, but a script may write to them. So the device computes a
checksum of the tensors when `save` returns, and another one after the copy. At times a *proof* is made: a state that was
copied inside `save` is compared with its tensors when the optimizer's next step begins. docs/designs/checkpoint.md,
"Overlapped copies", has the reasons, and which changes are not detected. Tensors in the machine's memory are copied inside
`save`, because training needs the cores afterwards.
"""

import atexit
import os
import queue
import sys
import threading
import weakref

from . import _device, _watch

#: Tensors of fewer bytes are copied inside save.
BIG = 1 << 20
#: One save in as many is a proof.
PROOF_EVERY = 16
#: A layout blocks after so many unequal comparisons in all, or after two in a row.
MOST_UNEQUAL = 5
BLOCK, PROOF, OVERLAP = "block", "proof", "overlap"
_LAYOUTS = 64  # older ones are dropped, except those that block


class Trust:
    """The comparisons of a layout and the decision from them. Does no I/O."""

    def __init__(self):
        self.reason = 0  # why the layout blocks from now on
        self.missing = 0  # why none of its tensors can overlap at present
        self.asked = 0
        self._proven, self._since, self._row, self._all = frozenset(), 0, 0, 0

    def mode(self, leaves):
        """How a save that could overlap these leaves is copied."""
        if self.reason or not leaves:
            return BLOCK
        return OVERLAP if leaves <= self._proven and self._since < PROOF_EVERY - 1 else PROOF

    def judge(self, leaves, equal, proof):
        """Records a comparison. After an unequal one the next save is a proof, which is a valid save whatever the result."""
        if equal:
            self._row = 0
            if proof:
                self._proven, self._since = leaves, 0
            else:
                self._since += 1
            return
        self._row, self._all, self._proven = self._row + 1, self._all + 1, frozenset()
        if self._row >= 2 or self._all >= MOST_UNEQUAL:
            self.reason = _watch.UNEQUAL


class Pair:
    """A tensor and its place in the slot."""

    __slots__ = ("source", "view", "at", "version")

    def __init__(self, source, view):
        self.source, self.view = source, view
        self.at, self.version = source.data_ptr(), source._version

    def same(self):
        """Whether the source's memory is unmoved and torch knows of no write since."""
        return self.source.data_ptr() == self.at and self.source.untyped_storage().nbytes() > 0 and self.source._version == self.version


class Flight:
    """A copy under way."""

    def __init__(self, step, pairs, leaves, trust, aside, count, announce, drop):
        self.step, self.pairs, self.leaves, self.trust = step, pairs, leaves, trust
        self._aside, self._count, self._announce, self._drop = aside, count, announce, drop
        self.announced = False
        self.over = threading.Event()

    def run(self):
        """Waits for the copy, then announces or drops it. Never raises, and always sets over. Only for Holdfast's threads."""
        try:
            equal = self._equal()
            self.trust.judge(self.leaves, equal, proof=False)
            self._count(self.trust)
            (self._announce if equal else self._drop)()
            self.announced = equal
        except BaseException:  # raised while the interpreter ends
            pass
        finally:
            self._aside = self.pairs = None
            self.over.set()

    def _equal(self):
        try:
            return self._aside.equal() and all(p.same() for p in self.pairs)
        except Exception:  # a copy that cannot be compared counts as unequal
            self._aside.wait()
            return False


class Proof:
    """A copy made inside save, to be compared with its source as the next step begins."""

    def __init__(self, pairs, leaves, trust, devices):
        self.pairs, self.leaves, self.trust, self._devices = pairs, leaves, trust, devices
        self._before = self._digests()

    def _digests(self):
        return self._devices.digests([p.source for p in self.pairs])

    def equal(self):
        """Whether the sources are unchanged; False during a graph capture, where it cannot be known."""
        return all(p.same() for p in self.pairs) and not _device.capturing() and _device.same(self._before, self._digests())


class Overlap:
    """One per checkpoint. Calls step_begins(step) as an optimizer's step begins after a copy of that step was announced, and
    judged() after each proof."""

    def __init__(self, devices, step_begins, judged, say):
        self._devices = devices
        self.on = os.environ.get("HOLDFAST_OVERLAP") == "1"
        self.watch = _watch.Watch(self._hook, self.give_up)
        self.blocking, self.reason = 0, 0  # layouts that block, and why the newest of them does
        self._step_begins, self._judged, self._say = step_begins, judged, say
        self._trusts, self._last = {}, (None, None)
        self._flight = self._proof = self._flights = None
        self._pid = os.getpid()

    # Called by a save.

    def plan(self, layout, flat, tracked, wanted):
        """How to copy this save: its mode, the trust in its layout, and the leaves that the mode applies to."""
        if not self.on or not self._devices.can_aside():
            return BLOCK, None, frozenset()
        try:
            trust, leaves = self._look(layout, flat, tracked)
        except Exception as e:  # an optimizer of unknown structure; a container that allows no more threads
            self.give_up(e)
            return BLOCK, None, frozenset()
        return trust.mode(leaves) if wanted else BLOCK, trust, leaves

    def _look(self, layout, flat, tracked):
        self.watch.start()
        trust = self._trust(layout)
        owned, leaves, why = self.watch.owned(), [], []
        for i, leaf in enumerate(flat.leaves):
            if leaf.nbytes >= BIG and _plain(leaf):
                reason = owned.get((leaf.source.data_ptr(), leaf.nbytes), -1)
                leaves.append(i) if reason == 0 else why.append(reason)
        trust.asked += 1
        trust.missing = 0
        if why and not leaves:
            missing = max(why) if max(why) > 0 else _watch.without_hook(tracked)
            if missing not in (_watch.NO_HOOK, _watch.UNKNOWN) or trust.asked > _watch.LATELY:
                trust.missing = missing
        self._count(trust)
        if leaves and self._flights is None:
            self._flights = _fly()
        return trust, frozenset(leaves)

    def give_up(self, error):
        """Handles an error of Holdfast: training goes on, and later saves are copied inside save."""
        self.on = False
        self._say("saves are copied inside save from now on: %s: %s" % (type(error).__name__, error))

    def _trust(self, layout):
        if self._last[0] is not layout:
            if len(self._trusts) >= _LAYOUTS:
                self._trusts = {k: t for k, t in self._trusts.items() if t.reason}
            self._last = (layout, self._trusts.setdefault(layout.json, Trust()))
        return self._last[1]

    def _count(self, newest):
        blocked = [t.reason for t in self._trusts.values() if t.reason and t is not newest]
        self.reason = newest.reason or newest.missing
        self.blocking = len(blocked) + bool(self.reason)
        if blocked and not self.reason:
            self.reason = blocked[-1]

    def prove(self, pairs, leaves, trust):
        """Has this save, copied inside save, compared once more at the next step."""
        try:
            self._proof = Proof(pairs, leaves, trust, self._devices)
        except Exception as e:  # no room on the device for a digest
            self.give_up(e)

    def begin(self, step, pairs, leaves, trust, aside, announce, drop):
        """Tracks a copy that has begun. Another thread calls announce() or drop(), once."""
        self._flight = Flight(step, pairs, leaves, trust, aside, self._count, announce, drop)
        self._flights.put(self._flight)

    # When a copy must be over.

    def settle(self, within=None):
        """Waits until no copy is under way, or for so many seconds. Returns the flight that was under way, or None. Drops a proof
        that no step has met."""
        flight, self._proof = self._flight, None
        return self._land(flight, within)

    def _land(self, flight, within=None):
        if flight is not None and os.getpid() == self._pid:
            flight.over.wait(within)
            self._count(flight.trust)
            if self._flight is flight:
                self._flight = None
        return flight

    def _hook(self):
        if os.getpid() != self._pid:
            return
        flight, proof, self._proof = self._flight, self._proof, None
        if flight is None and proof is None:
            return
        self._land(flight)
        if proof is not None:
            proof.trust.judge(proof.leaves, proof.equal(), proof=True)
            self._count(proof.trust)
            self._judged()
        if flight is not None and flight.announced:
            self._step_begins(flight.step)

    def end(self):
        """Announces a copy under way at the end of the process, and waits for its device for a bounded time."""
        self.settle(_device.AT_END)
        if os.getpid() == self._pid:
            self._devices.end()

    def forget(self):
        """In a forked child: no copy is under way here."""
        self._flight = self._proof = self._flights = None


def _fly():
    """A queue of flights, and a thread that runs them."""
    flights = queue.SimpleQueue()

    def fly():
        while True:
            flights.get().run()

    threading.Thread(target=fly, name="holdfast-overlap", daemon=True).start()
    return flights


def _plain(leaf):
    """Whether a leaf is contiguous device memory that can be copied and checksummed as plain bytes."""
    t = leaf.source
    if leaf.spec[0] not in ("torch", "dtensor") or not _device.is_on_one(t) or not t.is_contiguous() or t.is_conj() or t.is_neg():
        return False
    return not t.is_inference() and t.data_ptr() % 8 == 0


def follow(checkpoint):
    """Announces a copy under way before the process ends, and makes a forked child forget its parent's copies."""
    ref = weakref.ref(checkpoint)

    def finish():
        ck = ref()
        if ck is not None:
            ck._overlap.end()

    def forget():
        ck = ref()
        if ck is not None:
            ck._forked()

    atexit.register(finish)
    os.register_at_fork(after_in_child=forget)
