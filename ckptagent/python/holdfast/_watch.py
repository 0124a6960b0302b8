"""Observes optimizers: which ones step, which tensors they own, and when a step begins.

torch calls this module's hook before each optimizer step. A copy made while training goes on is safe only if torch calls the
hook. An optimizer's tensors are copied that way only if torch has called the hook between the last LATELY + 1 saves, and none
of the reasons below applies.
"""

import os
import sys
import weakref

from . import _sharded

#: Times in a row that an optimizer's hook must fire before its tensors are copied beside training.
LATELY = 3
#: Reasons not to overlap saves; docs/formats/checkpoint.md defines them.
UNEQUAL, NO_HOOK, IN_BACKWARD, COMPILED, UNKNOWN, CLOSURE = 1, 2, 3, 4, 5, 6


class _Met:
    __slots__ = ("ref", "fired", "row", "why")

    def __init__(self, ref):
        self.ref, self.fired, self.row, self.why = ref, False, 0, 0


class Watch:
    """One per checkpoint. Calls before() as a step of any optimizer begins; an error of Holdfast goes to failed()."""

    def __init__(self, before, failed):
        self._before, self._failed = before, failed
        self._met = {}  # id of an optimizer -> its _Met
        self._handle = None
        self.off = False
        self._pid = os.getpid()

    def start(self):
        """Registers the hook, once torch is imported."""
        module = sys.modules.get("torch.optim.optimizer")
        if self._handle is None and module is not None and hasattr(module, "register_optimizer_step_pre_hook"):
            self._handle = module.register_optimizer_step_pre_hook(_hook(weakref.ref(self), sys.modules["torch"]))
            try:  # before the script's own hooks, which may write
                module._global_optimizer_pre_hooks.move_to_end(self._handle.id, last=False)
            except (AttributeError, KeyError):  # otherwise a write by hooks that run before this one counts as a change
                pass

    def stop(self):
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def begins(self, optimizer, args, kwargs, compiled, in_backward):
        met = self._met.get(id(optimizer))
        if met is None or met.ref() is not optimizer:
            met = self._met[id(optimizer)] = _Met(weakref.ref(optimizer))
        met.why = 0
        if compiled:
            met.why = COMPILED
        elif in_backward:
            met.why = IN_BACKWARD
        elif kwargs.get("closure") is not None or len(args) > 1 and callable(args[1]):
            met.why = CLOSURE
        met.row = 0 if met.why else met.row + 1
        met.fired = True
        self._before()

    def failed(self, error):
        """Disables the hook but keeps it registered: torch is iterating over its hooks."""
        self.off = True
        self._failed(error)

    def owned(self):
        """(address, bytes) of each tensor of the optimizers that step -> 0, or the reason not to copy it beside training. Called
        once per save: an optimizer without a step since the previous call does not count."""
        found = {}
        for key, met in list(self._met.items()):
            optimizer = met.ref()
            if optimizer is None:
                del self._met[key]
                continue
            if not met.fired:
                met.row = 0
            met.fired = False
            why = met.why or (COMPILED if any(g.get("capturable") for g in optimizer.param_groups) else 0)
            if not why and met.row < LATELY:
                why = NO_HOOK
            for t in _tensors(optimizer):
                at = (t.data_ptr(), t.nbytes)
                found[at] = found.get(at) or why
        return found


def _tensors(optimizer):
    torch = sys.modules["torch"]
    for group in optimizer.param_groups:
        for p in group["params"]:
            yield _own(p)
    for state in optimizer.state.values():
        for v in state.values() if isinstance(state, dict) else ():
            if isinstance(v, torch.Tensor) and v.dim():
                yield _own(v)


def _own(t):
    return getattr(t, "_local_tensor", None) if _sharded.is_dtensor(t) else t


def without_hook(tracked):
    """Why no tracked object can be copied beside training, if no observed optimizer owns it."""
    torch = sys.modules["torch"]
    known = [v for v in tracked if isinstance(v, torch.optim.Optimizer)]
    if known:
        return NO_HOOK
    return UNKNOWN if any(hasattr(v, "zero_grad") and hasattr(v, "step") for v in tracked) else 0


def _hook(ref, torch):
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    swap = getattr(frames, "set_eval_frame", None) or (lambda callback: None)
    task = getattr(torch._C, "_current_graph_task_id", lambda: 0)  # unknown counts as within backward

    def begins(optimizer, args, kwargs):
        watch = ref()
        if watch is None or watch.off or os.getpid() != watch._pid:
            return
        compiler = swap(None)  # nothing that runs here may be compiled
        try:
            watch.begins(optimizer, args, kwargs, compiler is not None, task() != -1)
        except Exception as e:
            watch.failed(e)
        finally:
            swap(compiler)

    # A compiler that compiles the whole step gets an empty function here: then the hook does not fire, and nothing overlaps.
    begins._torchdynamo_inline = _traced
    if hasattr(frames, "skip_code"):
        frames.skip_code(begins.__code__)
    return begins


def _traced(optimizer, args, kwargs):
    pass
