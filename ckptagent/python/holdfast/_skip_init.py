"""Builds a model without initial values where restore overwrites them.

Within a skip_init block the functions of torch.nn.init leave parameters as they are if a step will be restored. All other values,
such as buffers that a module computes, are computed as usual. At the end of the block the random states are those that the first
process had there, so what the script draws later is the same. They are part of each saved state.
"""

import gc
import pickle
import sys
import weakref

from . import _rng, _sharded
from ._kinds import RestoreError

_END, _MOST = "end", 64
# How many values the tracked objects are searched for parameters at most: that takes about a second.
_REACHED = 1_000_000


class SkipInit:
    """A block in which a script builds its model. `known` has what earlier processes recorded of their blocks; a block that is not in
    it initializes as usual and appends its record: the random states at its end, and those after a call that others drew numbers
    after, by the call's number. A record without these states is one of too many such calls; nothing is left out then."""

    def __init__(self, known, number, left):
        self._known, self._number, self._left = known, number, left
        self._theirs = {}
        self._calls = 0

    def __enter__(self) -> None:
        if self._number > len(self._known):
            return
        new = self._number == len(self._known)
        self._record, self._after = {} if new else pickle.loads(self._known[self._number]), None
        if self._record is None:
            return
        init = sys.modules["torch"].nn.init
        self._theirs = {name: call for name, call in vars(init).items() if name.endswith("_") and not name.startswith("_") and callable(call)}
        for name, call in self._theirs.items():
            setattr(init, name, self._wrapped(call, self._recorded if new else self._skipped))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for name, call in self._theirs.items():
            setattr(sys.modules["torch"].nn.init, name, call)
        if kind is not None or not self._theirs:
            return
        if self._number == len(self._known):
            self._note_draws()
            self._known.append(pickle.dumps(None if len(self._record) > _MOST else {**self._record, _END: _rng.get()}, protocol=4))
        else:
            _rng.put(self._record[_END])

    def _wrapped(self, call, of_parameter):
        torch = sys.modules["torch"]

        def init(tensor, *args, **options):
            if not isinstance(tensor, torch.nn.Parameter) or any(isinstance(v, torch.Generator) for v in (*args, *options.values())):
                return call(tensor, *args, **options)
            of_parameter(call, tensor, args, options)
            self._calls += 1
            return tensor

        return init

    def _recorded(self, call, tensor, args, options):
        self._note_draws()
        call(tensor, *args, **options)
        self._after = _drawn()

    def _note_draws(self):
        """Notes the states after the last call if other code has drawn since."""
        if self._calls and len(self._record) <= _MOST and not all(map(sys.modules["torch"].equal, _drawn(), self._after)):
            self._record[self._calls - 1] = self._after

    def _skipped(self, call, tensor, args, options):
        self._left.append(weakref.ref(tensor))
        torch, states = sys.modules["torch"], self._record.get(self._calls)
        if states is not None:
            torch.set_rng_state(states[0])
            if states[1:]:
                torch.cuda.set_rng_state_all(states[1:])


def _drawn():
    """The states of torch's generators, which the functions of torch.nn.init draw from."""
    torch = sys.modules["torch"]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def check(left, tracked):
    """Raises RestoreError for a parameter that was left without a value and that the tracked objects do not hold."""
    missing = _not_in(left, tracked)
    if missing and gc.collect() >= 0:  # one that was replaced, as fully_shard does, may be in a cycle
        missing = _not_in(left, tracked)
    if missing:
        raise RestoreError(
            "%d parameters have no values, the first one of shape %s: they were created within skip_init() and no tracked object holds them; "
            "track the module, or create it outside of the block" % (len(missing), list(missing[0]().shape))
        )


def _not_in(left, tracked):
    held = {id(p) for p in _parameters(tracked)}
    return [ref for ref in left if ref() is not None and id(ref()) not in held]


def _parameters(tracked):
    torch = sys.modules["torch"]
    for v in _sharded.reached(tracked, _REACHED):
        if isinstance(v, torch.nn.Module):
            yield from v.parameters()
        elif isinstance(v, torch.Tensor):
            yield v
