"""Recognizes objects that are not saved by their state_dict(): those that are saved in another way, and those that are refused.

An object is recognized by the name of its class, so that this module imports no framework that the script has not imported.
"""

import sys

OPTIM = "optim"


class RestoreError(RuntimeError):
    """The step that this generation starts from cannot be restored whole."""


class TrackError(TypeError):
    """A tracked object could never be restored; the text names it and what to track instead."""


# class, its module, description, remedy
_REFUSED = (
    ("FullyShardedDataParallel", "torch.distributed.fsdp", "a module of FSDP1 (FullyShardedDataParallel)", "shard it with torch.distributed.fsdp.fully_shard, whose parameters are kept as they are"),
    ("DeepSpeedZeroOptimizer_Stage3", "deepspeed.", "an optimizer of DeepSpeed's ZeRO stage 3", "use fully_shard, or leave it untracked and load DeepSpeed's own checkpoint"),
    ("ZeROOptimizer", "deepspeed.", "an optimizer of DeepSpeed's ZeRO, which loads the states of all ranks at once", "track holdfast.deepspeed.Engine(engine), which keeps stages 1 and 2, or leave it untracked and load DeepSpeed's own checkpoint"),
    ("DistributedOptimizer", "megatron.", "Megatron's DistributedOptimizer, whose state_dict() leaves out what other ranks hold", "leave it untracked and load Megatron's own checkpoint, or run without --use-distributed-optimizer"),
)  # fmt: skip


def _is(v, name, module):
    return any(c.__name__ == name and c.__module__.startswith(module) for c in type(v).__mro__)


def is_zero(v):
    return _is(v, "ZeroRedundancyOptimizer", "torch.distributed.optim")


def _parts(v):
    """v, and the objects in it that decide whether it can be kept."""
    yield v
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(v, torch.nn.Module):
        yield from v.modules()
    elif hasattr(v, "zero_grad"):  # an optimizer, perhaps one around others (a scheduler only refers to one)
        yield getattr(v, "optimizer", None)
        yield from getattr(v, "chained_optimizers", ())


def refuse(v, path):
    """Raises TrackError if v, an object with state_dict, is of a kind that can never be restored."""
    for part in _parts(v):
        for name, module, what, instead in _REFUSED:
            if _is(part, name, module):
                raise TrackError("%s is or holds %s: %s" % (path, what, instead))
    for p in _parameters(v):
        if hasattr(p, "ds_id"):
            raise TrackError("%s holds parameters that DeepSpeed's ZeRO stage 3 has taken apart: %s" % (path, _REFUSED[1][3]))
        if getattr(p, "_is_flat_param", False):
            raise TrackError("%s holds flat parameters of FSDP1: %s" % (path, _REFUSED[0][3]))
    if is_zero(v) and not hasattr(v, OPTIM):
        raise TrackError("%s is a ZeroRedundancyOptimizer that makes its optimizer later: use overlap_with_ddp=False" % path)


def _parameters(v):
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    if isinstance(v, torch.nn.Module):
        return v.parameters()
    if isinstance(v, torch.optim.Optimizer):
        return (p for group in v.param_groups for p in group["params"])
    return ()


def take(v):
    """The state of an object with state_dict. For ZeRO-1 only this rank's part, where state_dict() would gather all parts."""
    if not is_zero(v):
        return v.state_dict()
    return {
        OPTIM: v.optim.state_dict(),
        "groups": [{k: x for k, x in g.items() if k != "params"} for g in v.param_groups],
        "part": _part_of_zero(v),
        "of": _place_of_zero(v),
    }


def _part_of_zero(v):
    return [[list(p.shape) for p in g["params"]] for g in v.optim.param_groups]


def _place_of_zero(v):
    """For each group: its number of parameters on all ranks, and the indices of this rank's among all of the optimizer's."""
    number = {id(p): i for i, p in enumerate(p for g in v.param_groups for p in g["params"])}
    return [[len(g["params"]), [number[id(p)] for p in mine["params"]]] for g, mine in zip(v.param_groups, v.optim.param_groups)]


def whole_of_zero(saved):
    """A result of take as the state_dict of an undivided optimizer, with this rank's part of the state."""
    number, groups, total = {}, [], 0
    for mine, group, (count, of) in zip(saved[OPTIM]["param_groups"], saved["groups"], saved["of"]):
        number.update(zip(mine["params"], of))
        groups.append({**group, "params": list(range(total, total + count))})
        total += count
    return {"state": {number[i]: s for i, s in saved[OPTIM]["state"].items()}, "param_groups": groups}


def give(v, saved):
    """Loads a result of take into an object with load_state_dict."""
    if not is_zero(v):
        has_memory(v)
        v.load_state_dict(saved)
        return
    if saved["part"] != _part_of_zero(v):
        raise RestoreError(
            "a ZeroRedundancyOptimizer was saved with parameters of shapes %s on this rank; now it has %s: start with the "
            "same parameters in the same order on the same number of ranks" % (saved["part"], _part_of_zero(v))
        )
    v.optim.load_state_dict(saved[OPTIM])
    for group, was in zip(v.param_groups, saved["groups"]):
        group.update(was)


def has_memory(v):
    """Raises RestoreError for a module with a parameter on the meta device: its load_state_dict would only warn."""
    for name, p in v.named_parameters() if hasattr(v, "named_parameters") else ():
        if p.is_meta:
            raise RestoreError("parameter %s is on the meta device and has no memory: call to_empty(device=...) on the module before restore()" % name)


class GroupsDiffer(Exception):
    """An optimizer now has other parameter groups than when it was saved."""


def same_groups(name, current, saved):
    """Checks parameter groups before the load: an optimizer's own error does not name it or their number."""
    groups = getattr(current, "param_groups", None)
    was = saved.get("param_groups") if isinstance(saved, dict) else None
    if not isinstance(groups, list) or not isinstance(was, list):
        return
    remedy = (
        "groups and parameters that training adds (add_param_group, unfreezing) must exist before restore(): "
        "read resume_step and add those that training had at that step"
    )
    if len(groups) != len(was):
        raise GroupsDiffer("%s has %d parameter groups and was saved with %d; %s" % (name, len(groups), len(was), remedy))
    for i, (now, old) in enumerate(zip(groups, was)):
        if len(now["params"]) != len(old["params"]):
            raise GroupsDiffer(
                "%s has %d parameters in group %d and was saved with %d; %s" % (name, len(now["params"]), i, len(old["params"]), remedy)
            )
