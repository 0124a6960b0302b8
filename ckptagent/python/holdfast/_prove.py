"""Checks an object when it is tracked: can save and restore handle it?

prove() checks only the structure, without copies, changes or communication. prove() calls state_dict() only on modules and
optimizers, where the call has no side effect. state_dict() of a data loader may start its workers and draw random numbers.
"""

import array
import collections
import pickle
import sys

from . import _kinds, _plain
from ._kinds import TrackError
from ._state import Flat, Unsupported

_QUIET = ("torch.optim.", "torch.amp.", "torch.cuda.amp.")  # whose state_dict has no side effect


class _Nowhere:
    def write(self, data):
        return len(data)


class _Trial(Flat):
    """Walks a state as a save does, without keeping any of it."""

    def _state_of(self, v):
        return _kinds.take(v) if _only_reads(v) else None

    def _pickled(self, v):
        pickle.Pickler(_Nowhere(), protocol=4).dump(v)
        return b""


def _only_reads(v):
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    plain = (torch.nn.Module.state_dict, torch.optim.Optimizer.state_dict)
    return getattr(type(v), "state_dict", None) in plain or type(v).__module__.startswith(_QUIET) or _kinds.is_zero(v)


def prove(name, value):
    """Raises TrackError if value could never be restored. Returns "", or why a save would not keep it as it is now, which may
    change before the first save."""
    if not _changeable(value):
        raise TrackError("%s is a %s, which cannot be changed in place: track a dict that holds it" % (name, type(value).__name__))
    try:
        _look(value, name)
        _Trial().add(name, value)
    except TrackError:
        raise
    except Unsupported as e:
        return str(e)
    except Exception as e:  # as in a save: by then it may not raise any more
        return "%s: %s: %s" % (name, type(e).__name__, e)
    return ""


def _changeable(v):
    torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(v, torch.Tensor):
        return _plain.writable(torch, v)
    if np is not None and isinstance(v, np.ndarray):
        return v.flags.writeable
    return isinstance(v, (dict, bytearray, array.array)) or type(v) is list or _stateful(v)


def _stateful(v):
    return hasattr(v, "state_dict") and hasattr(v, "load_state_dict")


def _look(v, path):
    """Raises TrackError for an object of a refused kind, or at a place that restore does not reach."""
    if _stateful(v):
        _kinds.refuse(v, path)
        return
    if not isinstance(v, (dict, list, tuple, set, frozenset)):
        return
    reached = type(v) in (dict, list) or isinstance(v, collections.OrderedDict)
    for k, x in v.items() if isinstance(v, dict) else enumerate(v):
        at = "%s[%r]" % (path, k)
        if _stateful(x) and not reached:
            raise TrackError("%s is a %s in a %s, which restore replaces: use a dict or a list" % (at, type(x).__name__, type(v).__name__))
        _look(x, at)
