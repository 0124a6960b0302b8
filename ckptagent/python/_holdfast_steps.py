"""Counts the optimizer steps of a script that does not use the client, by torch's hook for all optimizers.

docs/python.md defines the numbers. A number that is uncertain is not reported. A step is not counted if the optimizer may
have skipped it and only waiting for the device would show that. The restored step is reported once two steps of the optimizer
agree on it.
"""

import sys
from _weakref import ref

#: Most frames between a step and the step that calls it by super(); more than a subclass and its decorators need.
_DEPTH = 48

torch = None
_CPU = None
_counter = None


class Counter:
    """One per process. page takes steps(count) and resumed(step or None), and ignores both in a process that the rank has forked."""

    def __init__(self, page, first):
        self.page, self.first = page, first
        self.met = {}  # id of an optimizer -> its _Met
        self.several = {}  # class of an optimizer -> whether a step of it may call another one of its steps
        self.leader, self.most = None, 0
        self.engines = False  # DeepSpeed counts the steps
        self.wrapper = None

    def watch_optimizers(self, module):
        """For torch.optim.optimizer, once it was executed."""
        global torch, _CPU, _counter
        torch, _counter = sys.modules["torch"], self
        # Decided by the version: torch.compiler is imported only after the optimizers.
        if tuple(int(n) for n in str(torch.__version__).split(".")[:2]) < (2, 3):
            return  # there the hook cannot recognize a compiler, and must not raise within a step
        _CPU = torch.device("cpu")
        self.base = module.Optimizer
        self.wrapper = module.Optimizer.profile_hook_step(len).__code__
        try:
            _hide(torch)
        except Exception:  # torch's internals differ: then the compiler inspects the hook and does not compile it
            pass
        module.register_optimizer_step_post_hook(stepped)

    def watch_engines(self, module):
        """For deepspeed.runtime.engine: only the engine's count is used, however often its optimizers step."""
        engine = module.DeepSpeedEngine
        take = engine._take_model_step

        def _take_model_step(this, *args, **kwargs):
            self.engines, before = True, this.global_steps
            try:
                return take(this, *args, **kwargs)
            finally:
                try:
                    self.engine_stepped(this, before)
                except Exception as e:
                    self.fail(e)

        _take_model_step.__wrapped__ = take
        engine._take_model_step = _take_model_step

    def engine_stepped(self, engine, before):
        if engine.global_steps <= before:
            return
        met = self.met.get(id(engine))
        if met is None:
            met = self._meet(engine)
            met.resumed = self._known(before)
        met.count += engine.global_steps - before
        if met.count > self.most:
            self._lead(met)

    def optimizer_stepped(self, optimizer, kwargs):
        if self.engines or "grad_scaler" in kwargs:
            return  # a step that gets the scaler decides itself whether to skip
        found = getattr(optimizer, "found_inf", None)
        if found is not None and (getattr(found, "device", None) != _CPU or found.item()):
            return
        met = self.met.get(id(optimizer))
        if met is None:
            met = self._meet(optimizer)
        several = self.several.get(type(optimizer))
        if several is None:
            steps = [c for c in type(optimizer).__mro__ if c is not self.base and "step" in vars(c)]
            several = self.several[type(optimizer)] = len(steps) > 1
        if several and self._within_its_own_step(optimizer):
            return
        met.count += 1
        if met.count <= 2:
            self._compare(met, optimizer)
        if met.count > self.most or met is self.leader and met.count == 2:
            self._lead(met)

    def _meet(self, thing):
        key, forget = id(thing), self.met.pop  # another object may get this id later
        met = self.met[key] = _Met(ref(thing, lambda _: forget(key, None)))
        return met

    def _lead(self, met):
        if met is not self.leader or met.count == 2:
            self.leader = met
            self.page.resumed(met.resumed)
        if met.count > self.most:
            self.most = met.count
            self.page.steps(met.count)

    def _known(self, before):
        """The restored step, if known. A count of 0 means not restored, or step 0: certain only in the first generation."""
        return before if before >= 1 or self.first and before == 0 else None

    def _compare(self, met, optimizer):
        """The state's count at the first step is used if it is one higher at the second."""
        try:
            value = _largest_step(optimizer)
        except Exception:  # the state has an unknown shape, or lies on a device that must not be read
            value = None
        if met.count == 1:
            met.value = value
        elif value is not None and met.value is not None and value == met.value + 1:
            met.resumed = self._known(met.value - 1)

    def _within_its_own_step(self, optimizer):
        """Whether the step that has just ended was called by an unfinished step of the same object."""
        frame, own = sys._getframe(2), True
        for _ in range(_DEPTH):
            if frame is None:
                return False
            if frame.f_code is self.wrapper and frame.f_locals.get("self") is optimizer:
                if not own:
                    return True
                own = False
            frame = frame.f_back
        return False

    def fail(self, error):
        """Stops counting: an error of Holdfast must not end the script."""
        self.optimizer_stepped = self.engine_stepped = lambda *_: None
        try:
            print("holdfast: counting optimizer steps: %s: %s" % (type(error).__name__, error), file=sys.stderr)
        except Exception:  # the script may have closed its stderr
            pass


class _Met:
    __slots__ = ("ref", "count", "value", "resumed")

    def __init__(self, ref):
        self.ref, self.count, self.value, self.resumed = ref, 0, None, None


def stepped(optimizer, args, kwargs):
    """The hook."""
    if torch.compiler.is_compiling():
        return
    try:
        _counter.optimizer_stepped(optimizer, kwargs)
    except Exception as e:
        _counter.fail(e)


def _traced(optimizer, args, kwargs):
    """What a compiler finds in place of the hook. A question there whether it compiles would recompile for each optimizer."""


stepped._torchdynamo_inline = _traced


def _hide(torch):
    """Makes the compiler skip what runs here, where it could not compile a step as a whole."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):  # marks each function alone
        page = sys.modules.get("_holdfast_page")
        kinds = (Counter, _Met) if page is None else (Counter, _Met, page.Page)
        pending = [f.__code__ for f in (stepped, _largest_step)]
        pending += [f.__code__ for kind in kinds for f in vars(kind).values() if hasattr(f, "__code__")]
        while pending:
            code = pending.pop()
            frames.skip_code(code)
            pending += [c for c in code.co_consts if hasattr(c, "co_consts")]
    elif hasattr(frames, "set_code_exec_strategy"):  # marks a function and all that it calls
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(stepped.__code__, frames._FrameExecStrategy(skip, skip))


def _largest_step(optimizer):
    """The highest step count in an optimizer's state; None if it has none that can be read."""
    largest = None
    for state in optimizer.state.values():
        step = state.get("step")
        if step is None:
            continue
        if type(step) is torch.Tensor:
            if step.device.type != "cpu" and (step.device.type != "cuda" or torch.cuda.is_current_stream_capturing()):
                return None
            step = step.item()
        if type(step) not in (int, float) or step != int(step):
            return None
        largest = int(step) if largest is None else max(largest, int(step))
    return largest
