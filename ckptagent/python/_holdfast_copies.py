"""Sees, while a source of standbys imports, what would be another thing in a process of its own, and which module did it.

What copies can put right they do: renew() gives them generators, keys and a process id of their own. What they cannot is said.
Not seen: what C code reads or draws (getenv, getpid, getrandom), and values that were made of it and kept in objects.
"""

import gc
import os
import re
import sys
from _frozen_importlib import _find_and_load_unlocked

_IMPORT = _find_and_load_unlocked.__code__
# Modules that keep a key of processes, which copies renew: that of the standard library, and the one that datasets brings.
_KEYS = ("multiprocessing.process", "multiprocess.process")
# PyTorch draws a seed of 64 bits for a process when it is loaded; those that people set have 32.
_DRAWN = 1 << 32
# Modules that draw bytes at import for what copies renew, for a name within one process, or for what servers count users by.
_HARMLESS = _KEYS + ("numpy.random", "torch", "transformers.utils.hub", "diffusers.utils.hub_utils")


def importing():
    """The modules that are being imported now, the innermost last, but for those in which the interpreter starts."""
    return [name for name in _unfinished() if name not in _STARTING]


def _unfinished():
    return [name for name, module in list(sys.modules.items()) if getattr(getattr(module, "__spec__", None), "_initializing", False)]


_STARTING = frozenset(_unfinished())


def within(name, names):
    """Whether a module is one of these, or inside of one."""
    return any(name == n or name.startswith(n + ".") for n in names)


def shared_mappings():
    """Memory that a fork shares and both can write: semaphores, anonymous and named segments, files."""
    found = set()
    with open("/proc/self/maps") as f:
        for line in f:
            area, mode, _ = line.split(" ", 2)
            if mode[1] == "w" and mode[3] == "s":
                found.add(area)
    return found


class Guard:
    """Stands first on sys.meta_path and calls met(name) before a module is imported that is to be left out."""

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
        if within(name, self._names) and sys._getframe(2).f_code is _IMPORT:  # importlib.util.find_spec is no import
            self._met(name)
        return None


class Draws:
    """What the imports have taken of what is a process's own: random generators without a seed, bytes, the process id."""

    def __init__(self):
        self._generators, self._entropy, self._bits, self._pids = [], set(), [], []
        self.kept = []  # what copies cannot put right, each as "module X, which the script imports, …"

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
                if id(value) in self._wrapped:  # it was imported by name
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
        """Gives a copy what a process of its own would have; `random` itself sees to its functions."""
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
