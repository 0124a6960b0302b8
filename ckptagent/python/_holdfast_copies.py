"""Detects values that imports of a standby source drew or read and that must differ between processes: random numbers, keys,
the process id. A standby is forked from the source, so it would have the values of the source.

Draws.renew() gives a forked standby new generators, new keys and its own process id. Draws.kept lists the values that it cannot
renew, with the module that drew them. What C code reads or draws (getenv, getpid, getrandom) is not detected.
"""

import gc
import os
import re
import sys
from _frozen_importlib import _find_and_load_unlocked

_IMPORT = _find_and_load_unlocked.__code__
# Modules that keep a key per process, which copies renew: the standard library's, and the one that datasets installs.
_KEYS = ("multiprocessing.process", "multiprocess.process")
# PyTorch draws a 64-bit seed for the process when it is loaded; seeds that users set have 32 bits.
_DRAWN = 1 << 32
# Modules that draw bytes at import which copies renew, or for names within one process, or for identifiers in usage statistics.
_HARMLESS = _KEYS + ("numpy.random", "torch", "transformers.utils.hub", "diffusers.utils.hub_utils")


def importing():
    """The modules that are being imported now, innermost last, without those that the interpreter's start imports."""
    return [name for name in _unfinished() if name not in _STARTING]


def _unfinished():
    return [name for name, module in list(sys.modules.items()) if getattr(getattr(module, "__spec__", None), "_initializing", False)]


_STARTING = frozenset(_unfinished())


def within(name, names):
    """Whether a module is one of names or inside one of them."""
    return any(name == n or name.startswith(n + ".") for n in names)


def shared_mappings():
    """Writable memory that a fork shares with its parent: semaphores, anonymous and named segments, files."""
    found = set()
    with open("/proc/self/maps") as f:
        for line in f:
            area, mode, _ = line.split(" ", 2)
            if mode[1] == "w" and mode[3] == "s":
                found.add(area)
    return found


class Guard:
    """A finder, first on sys.meta_path. Calls met(name) before a module under names is imported."""

    def __init__(self, names, met):
        self._names, self._met = names, met

    def __enter__(self):
        if self._names:
            sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_):
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        if within(name, self._names) and sys._getframe(2).f_code is _IMPORT:  # importlib.util.find_spec imports nothing
            self._met(name)
        return None


class Draws:
    """What the imports took that each process must have for itself: unseeded random generators, random bytes, the process id."""

    def __init__(self):
        self._generators, self._entropy, self._bits, self._pids = [], set(), [], []
        self.kept = []  # what a copy cannot renew, each as "module X, which the script imports, …"

    def __enter__(self):
        import random
        import secrets

        self._random, self._secrets = random, secrets
        self._before = random.Random.seed, secrets.randbits, os.urandom, os.getpid
        self._wrap(*self._before)
        return self

    def _wrap(self, seed, randbits, urandom, getpid):
        def noting_seed(generator, a=None, *args, **options):
            self._generators = [g for g in self._generators if g is not generator] + ([generator] if a is None else [])
            return seed(generator, a, *args, **options)

        def noting_randbits(k):
            bits = randbits(k)
            self._entropy.add(bits)
            return bits

        def noting_urandom(size):
            by = importing()[-1:]
            if by and not within(by[0], _HARMLESS):
                self._keep(by[0], "draws random bytes")
            return urandom(size)

        def noting_getpid():
            self._pids += [name for name in importing()[-1:] if name not in self._pids]
            return getpid()

        self._wrapped = {id(noting_randbits): randbits, id(noting_urandom): urandom, id(noting_getpid): getpid}
        self._random.Random.seed, self._secrets.randbits = noting_seed, noting_randbits
        os.urandom, os.getpid = noting_urandom, noting_getpid

    def __exit__(self, *_):
        self._random.Random.seed, self._secrets.randbits, os.urandom, os.getpid = self._before
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            for name, value in list(names.items()) if type(names) is dict else ():
                if id(value) in self._wrapped:  # imported by name
                    names[name] = self._wrapped[id(value)]
        self._settle()

    def _keep(self, module, does):
        text = "module %s, which the script imports, %s" % (module, does)
        if text not in self.kept:
            self.kept.append(text)

    def _settle(self):
        kind = getattr(sys.modules.get("numpy.random.bit_generator"), "BitGenerator", ())
        self._bits = [o for o in gc.get_objects() if issubclass(type(o), kind) and getattr(o.seed_seq, "entropy", None) in self._entropy]
        self._numbers = []
        pid = os.getpid()
        word = re.compile(r"(?<!\d)%d(?!\d)" % pid)
        for module in self._pids:
            names = getattr(sys.modules.get(module), "__dict__", {})
            self._numbers += [(names, name) for name, value in names.items() if type(value) is int and value == pid]
            if any(type(value) is str and not name.startswith("__") and word.search(value) for name, value in names.items()):
                self._keep(module, "keeps a text with the process's id")

    def renew(self):
        """Renews generators, keys and process id in a copy; `random` reseeds its own functions after a fork."""
        for generator in self._generators:
            generator.seed()
        numbers = sys.modules.get("numpy.random")
        if numbers is not None:
            numbers.seed()
        default = getattr(sys.modules.get("torch"), "default_generator", None)
        if default is not None and default.initial_seed() >= _DRAWN:
            default.seed()
        for bits in self._bits:
            bits.state = type(bits)().state
        for names, name in self._numbers:
            names[name] = os.getpid()
        for name in _KEYS:
            process = sys.modules.get(name)
            if process is not None:
                process._current_process.authkey = os.urandom(32)
