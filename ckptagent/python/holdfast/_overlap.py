"""Copies made beside training, and how it is known that they are not torn.

What an optimizer owns does not change between two of its steps, or so it should be. Three things are looked at, because
a script may write to it all the same: lines of the source read inside `save` must be those of the slot after the copy;
the source, read again after the copy, must equal the slot; and every now and then a *proof*, a save copied inside `save`,
is compared with its source as the optimizer's next step begins. Why that is enough, and what it does not see, stands in
docs/designs/checkpoint.md, "Overlapped copies".
"""

import atexit
import ctypes
import itertools
import os
import queue
import random
import sys
import threading
import weakref

from . import _copy, _device, _watch

#: Tensors of fewer bytes are copied inside save.
BIG = 1 << 20
#: One save in as many is a proof.
PROOF_EVERY = 16
#: Unequal comparisons of a layout, in all, after which it blocks; two in a row are enough.
MOST_UNEQUAL = 5
#: One line is sampled in as many bytes, so that a contiguous write of as many is always seen.
PERIOD = 8192
LINE = 64
BLOCK, PROOF, OVERLAP = "block", "proof", "overlap"
_LAYOUTS = 64  # more are forgotten, but those that block
_ROWS = 4000  # samples compared at once: few enough that torch starts no threads for it

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Trust:
    """What a layout has shown. Decides, and does nothing."""

    def __init__(self):
        self.reason = 0  # why it blocks from now on
        self.missing = 0  # why nothing of it can overlap at present
        self.asked = 0
        self._proven, self._since, self._row, self._all = frozenset(), 0, 0, 0

    def mode(self, leaves):
        """How a save that could overlap these leaves is copied."""
        if self.reason or not leaves:
            return BLOCK
        return OVERLAP if leaves <= self._proven and self._since < PROOF_EVERY - 1 else PROOF

    def judge(self, leaves, equal, proof):
        """A comparison. After an unequal one the next save is a proof, which is a good save whatever it shows."""
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

    __slots__ = ("source", "view", "at", "to", "nbytes", "version")

    def __init__(self, source, view):
        self.source, self.view, self.nbytes = source, view, source.nbytes
        self.at, self.to, self.version = source.data_ptr(), view.data_ptr(), source._version

    def there(self):
        """Whether the source's memory still is where it was: else it must not be read."""
        return self.source.data_ptr() == self.at and self.source.untyped_storage().nbytes() > 0

    def written(self):
        """Whether torch knows of a write since."""
        return self.source._version != self.version


class Work:
    """Pieces that several threads take in turn. over is set once none is left and nobody is at one."""

    def __init__(self, pairs, do):
        self._pairs = pairs  # whose memory must last
        self._pieces = _copy.cut([(p.to, p.at, p.nbytes) for p in pairs])
        self._do, self._turn, self._lock = do, itertools.count(), threading.Lock()
        self._left, self.good, self.over = len(self._pieces), True, threading.Event()
        if not self._pieces:
            self.over.set()

    def help(self):
        for i in self._turn:  # next() of it is one step under the interpreter's lock
            if i >= len(self._pieces):
                return
            good = self.good and self._do(*self._pieces[i])
            with self._lock:
                self.good = self.good and good
                self._left -= 1
                if not self._left:
                    self.over.set()


def _copied(to, source, n):
    ctypes.memmove(to, source, n)
    return True


def _equal(to, source, n):
    return _memcmp(to, source, n) == 0


class Samples:
    """Lines of tensors as they were inside save: of each PERIOD bytes one, the same of each, drawn anew per save."""

    def __init__(self):
        self._known = {}  # (address, bytes) -> its lines as a tensor, and room for samples of them

    def forget(self):
        self._known.clear()

    def take(self, pairs, draw):
        """Reads lines of the sources, and returns a function that says whether the slot has the same."""
        torch = sys.modules["torch"]
        if len(self._known) > 2 * len(pairs):  # memory that has been let go of
            self._known.clear()
        line = draw.randrange(PERIOD // LINE)
        sources, kept, places = [], [], []
        for p in pairs:
            whole = p.nbytes // PERIOD
            ends = [(p.nbytes - LINE, 1)]
            if whole * PERIOD + (line + 1) * LINE < p.nbytes:
                ends.append((whole * PERIOD + line * LINE, 1))
            lines, room = self._lines(torch, p.at, p.nbytes)
            sources.append(lines[:, line])
            kept.append(room)
            places.append((p, whole, [(at, ctypes.string_at(p.at + at, LINE)) for at, _ in ends]))
        if kept:
            with torch.no_grad():
                torch._foreach_copy_(kept, sources)
        return lambda: all(self._same(torch, p, whole, line, room, ends) for (p, whole, ends), room in zip(places, kept))

    def _lines(self, torch, at, nbytes):
        known = self._known.get((at, nbytes))
        if known is None:
            with torch.inference_mode(False):
                lines = _lines(torch, at, nbytes)
                room = torch.empty((lines.shape[0], LINE // 8), dtype=torch.int64, device="cpu")
            known = self._known[at, nbytes] = (lines, room)
        return known

    def _same(self, torch, pair, whole, line, room, ends):
        slot = _lines(torch, pair.to, pair.nbytes)
        return all(ctypes.string_at(pair.to + at, LINE) == was for at, was in ends) and all(
            torch.equal(slot[i : i + _ROWS, line], room[i : i + _ROWS]) for i in range(0, whole, _ROWS)
        )


def _lines(torch, at, nbytes):
    """Memory as a tensor of its lines, by period; it must outlive what is done with that."""
    words = nbytes // PERIOD * PERIOD // 8
    memory = (ctypes.c_int64 * words).from_address(at)
    return torch.frombuffer(memory, dtype=torch.int64).view(-1, PERIOD // LINE, LINE // 8)


class Flight:
    """A copy under way."""

    def __init__(self, step, pairs, leaves, trust, begun, count, announce, drop):
        self.step, self.pairs, self.leaves, self.trust = step, pairs, leaves, trust
        self._begun, self._count, self._announce, self._drop = begun, count, announce, drop
        self.announced = False
        host = _here(pairs)
        self.away = len(host) < len(pairs)  # whether some of it comes from a device
        self.copying, self.comparing = Work(host, _copied), Work(host, _equal)
        self._read_again, self._decided = False, threading.Event()  # whether there is something to read
        self.over = threading.Event()

    def help(self):
        self.copying.help()
        self._decided.wait()
        if self._read_again:
            self.comparing.help()

    def run(self, ours=True):
        """Copies, compares, announces or drops. Never raises, and never leaves anybody waiting. ours: in a thread of ours."""
        try:
            equal = self._carry_out(ours)
            self.trust.judge(self.leaves, equal, proof=False)
            self._count(self.trust)
            (self._announce if equal else self._drop)()
            self.announced = equal
        except BaseException:  # an interpreter at its end
            pass
        finally:
            self._decided.set()
            self._begun = self.pairs = None
            self.over.set()

    def _carry_out(self, ours):
        try:
            self.copying.help()
            self.copying.over.wait()
            there = self._begun.equal() if ours else self._begun.nothing()
            # Only now is the source read again: equal readings after one another mean one state between them.
            self._read_again = all(p.there() for p in self.pairs)
            self._decided.set()
            if not self._read_again:
                return False
            self.comparing.help()
            self.comparing.over.wait()
            return self.comparing.good and there and self._begun.same() and not any(p.written() for p in self.pairs)
        except Exception:  # what could not be compared is not equal
            self._begun.wait()
            return False


class Begun:
    """What save does of a copy beside training: it reads samples of what lies in memory, and begins the copies from devices."""

    def __init__(self, pairs, samples, draw, devices):
        away = _there(pairs)
        self._aside = devices.aside([(p.view, p.source) for p in away]) if away else None
        try:
            self.same = samples.take(_here(pairs), draw)
        except BaseException:
            self.wait()
            raise

    def wait(self):
        if self._aside is not None:
            self._aside.wait()

    def nothing(self):
        """Waits for the devices; whether there is nothing to compare of them, as it cannot be in a thread of the script's."""
        self.wait()
        return self._aside is None

    def equal(self):
        """Waits for the devices; whether what they copied was the same before and after. For threads of ours."""
        return self._aside is None or self._aside.equal()


class Proof:
    """A copy that was made inside save, to be compared with its source as the next step begins."""

    def __init__(self, pairs, leaves, trust, devices):
        self.pairs, self.leaves, self.trust, self._devices = pairs, leaves, trust, devices
        self._away = [p.source for p in _there(pairs)]
        self._digests = devices.digests(self._away) if self._away else ()

    def work(self):
        """What is to be compared in memory; None: that something was written to is known already."""
        if not all(p.there() and not p.written() for p in self.pairs):
            return None
        return Work(_here(self.pairs), _equal)

    def unchanged(self):
        """Whether devices hold what they held; not known of a step that is captured."""
        return not self._away or not _device.capturing() and _device.same(self._digests, self._devices.digests(self._away))


class Overlap:
    """One per checkpoint. step_begins(step) is called as an optimizer's step begins after a copy of that step was announced;
    judged() after each proof."""

    def __init__(self, devices, step_begins, judged, say):
        self._devices = devices
        self.on = os.environ.get("HOLDFAST_OVERLAP") == "1"
        self.watch = _watch.Watch(self._hook, self.give_up)
        self.blocking, self.reason = 0, 0  # layouts that block, and why the newest of them does
        self._step_begins, self._judged, self._say = step_begins, judged, say
        self._trusts, self._last = {}, (None, None)
        self._samples, self._draw = Samples(), random.Random()  # of its own: the script's numbers stay as they are
        self._flight = self._proof = None
        self._threads = None
        self._pid = os.getpid()

    # What a save asks.

    def plan(self, layout, flat, tracked, wanted):
        """How to copy this save: its mode, the trust in its layout, and the leaves that mode is about."""
        if not self.on or "torch" not in sys.modules:
            return BLOCK, None, frozenset()
        try:
            trust, leaves = self._look(layout, flat, tracked)
        except Exception as e:  # an optimizer of a shape that is not ours to read
            self.give_up(e)
            return BLOCK, None, frozenset()
        return trust.mode(leaves) if wanted else BLOCK, trust, leaves

    def _look(self, layout, flat, tracked):
        self.watch.start()
        trust = self._trust(layout)
        owned, leaves, why = self.watch.owned(), [], []
        for i, leaf in enumerate(flat.leaves):
            if leaf.nbytes >= BIG and _plain(leaf) and (not _device.is_on_one(leaf.source) or self._devices.can_aside()):
                reason = owned.get((leaf.source.data_ptr(), leaf.nbytes), -1)
                leaves.append(i) if reason == 0 else why.append(reason)
        trust.asked += 1
        trust.missing = 0
        if why and not leaves:
            missing = max(why) if max(why) > 0 else _watch.without_hook(tracked)
            if missing not in (_watch.NO_HOOK, _watch.UNKNOWN) or trust.asked > _watch.LATELY:
                trust.missing = missing
        self._count(trust)
        return trust, frozenset(leaves)

    def give_up(self, error):
        """An error of ours: training goes on, and saves do as they always could."""
        self.on = False
        self._say("saves are copied inside save from now on: %s: %s" % (type(error).__name__, error))

    def _trust(self, layout):
        if self._last[0] is not layout:
            if len(self._trusts) >= _LAYOUTS:
                self._trusts = {k: t for k, t in self._trusts.items() if t.reason}
            self._last = (layout, self._trusts.setdefault(layout.json, Trust()))
            self._samples.forget()
        return self._last[1]

    def _count(self, newest):
        blocked = [t.reason for t in self._trusts.values() if t.reason and t is not newest]
        self.reason = newest.reason or newest.missing
        self.blocking = len(blocked) + bool(self.reason)
        if blocked and not self.reason:
            self.reason = blocked[-1]

    def prove(self, pairs, leaves, trust):
        """This save was copied inside save, and is compared once more at the next step."""
        try:
            self._proof = Proof(pairs, leaves, trust, self._devices)
        except Exception as e:  # a device that has no room for a digest
            self.give_up(e)

    def begun(self, pairs):
        """To be called at the end of save: what the copy that begin makes rests on."""
        return Begun(pairs, self._samples, self._draw, self._devices)

    def begin(self, step, pairs, leaves, trust, begun, announce, drop):
        """Copies aside. announce() or drop() is called by another thread, once."""
        self._flight = flight = Flight(step, pairs, leaves, trust, begun, self._count, announce, drop)
        if self._threads is None:
            self._threads = Threads()
        self._threads.carry_out(flight)

    # When a copy must be over.

    def settle(self, within=None):
        """Returns when no copy is under way any more, or so many seconds have passed; the flight there was, or None. A proof
        that met no step is none."""
        flight, self._proof = self._flight, None
        return self._land(flight, within)

    def _land(self, flight, within=None):
        if flight is not None and os.getpid() == self._pid:
            if not flight.over.is_set():
                self._threads.help(flight)
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
            proof.trust.judge(proof.leaves, self._compared(proof), proof=True)
            self._count(proof.trust)
            self._judged()
        if flight is not None and flight.announced:
            self._step_begins(flight.step)

    def _compared(self, proof):
        work = proof.work()
        if work is None:
            return False
        if self._threads is None:
            self._threads = Threads()
        self._threads.help(work)
        work.help()
        work.over.wait()
        return work.good and proof.unchanged()

    def end(self):
        """The process ends, and announces what is under way; a device that never gets there does not hold it up for ever."""
        self.settle(_device.AT_END if self._flight is not None and self._flight.away else None)
        if os.getpid() == self._pid:
            self._devices.end()

    def forget(self):
        """In a forked child: nothing is under way here."""
        self._flight = self._proof = self._threads = None


class Threads:
    """One that carries copies out beside training, or more where there are many cores, and others that help once
    training waits for it."""

    def __init__(self):
        self._flights, self._work = queue.SimpleQueue(), queue.SimpleQueue()
        self._helpers = 0
        self._there = self._start(self._fly, "holdfast-overlap")

    def carry_out(self, flight):
        if not self._there:  # the container allows no more threads
            flight.run(ours=False)
            return
        for _ in range(min(_copy.MOST, _copy.cores() // 8) - 1):
            self._call(flight)
        self._flights.put(flight)

    def help(self, work):
        for _ in range(min(_copy.MOST, _copy.cores()) - 1):
            self._call(work)

    def _call(self, work):
        if self._helpers < min(_copy.MOST, _copy.cores()) - 1 and self._start(self._help, "holdfast-help"):
            self._helpers += 1
        if self._helpers:
            self._work.put(work)

    def _start(self, run, name):
        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _fly(self):
        while True:
            self._flights.get().run()

    def _help(self):
        while True:
            self._work.get().help()


def _here(pairs):
    return [p for p in pairs if not _device.is_on_one(p.source)]


def _there(pairs):
    return [p for p in pairs if _device.is_on_one(p.source)]


def _plain(leaf):
    """Whether a leaf is bytes, of this process or a device, that can be copied and read again as they lie."""
    t = leaf.source
    if leaf.spec[0] not in ("torch", "dtensor") or t.device.type not in ("cpu", "cuda") or not t.is_contiguous() or t.is_conj() or t.is_neg():
        return False
    return not t.is_inference() and t.data_ptr() % 8 == 0


def follow(checkpoint):
    """Has a copy under way announced before the process ends, and a forked child forget what goes on in its parent."""
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
