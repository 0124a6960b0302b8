"""DeepSpeed's engine as one object to track.

    import holdfast.deepspeed

    engine, *_ = deepspeed.initialize(...)
    ck = holdfast.attach()
    ck.track(engine=holdfast.deepspeed.Engine(engine), rng=True)
    start = ck.restore()

Engine keeps what save_checkpoint would write for this rank alone: with ZeRO stage 1 or 2, this rank's part of the optimizer's
state. Engine does not gather states from other ranks, and restores only on the same number of ranks.
"""

import sys

from . import _client
from ._kinds import RestoreError
from ._state import Unsupported
from ._trainers import refuse

_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_OWN = "or leave it untracked and load DeepSpeed's own checkpoint"


class Engine:
    """Saves and restores the state of a deepspeed engine. Outside of a Holdfast job it accepts any engine, and its methods are
    never called."""

    def __init__(self, engine):
        self._engine, self.module = engine, getattr(engine, "module", ())
        if _client.attach().active:
            _refuse(engine)

    def state_dict(self):
        e = self._engine
        if e.micro_steps % e.gradient_accumulation_steps():
            raise Unsupported("accumulated gradients are not kept: save after the micro batch that ends a step")
        optimizer = e.optimizer.state_dict()
        optimizer.pop("param_slice_mappings", None)  # large, and needed only to convert checkpoints
        return {
            "module": e.module.state_dict(),
            "optimizer": optimizer,
            "scheduler": e.lr_scheduler.state_dict() if e.lr_scheduler is not None else None,
            "counts": {name: getattr(e, name) for name in _COUNTS},
            "part": _part(e),
        }

    def load_state_dict(self, saved):
        e, part = self._engine, _part(self._engine)
        if saved["part"] != part:
            raise RestoreError("the engine was saved with ZeRO stage %s, rank %s of %s, holding %s numbers, and now has %s, %s of %s, %s: start with the same configuration on the same number of ranks" % (*saved["part"], *part))
        e.module.load_state_dict(saved["module"])
        if part[0]:
            of_ranks = [None] * part[2]  # it reads only its own rank's
            of_ranks[part[1]] = saved["optimizer"]
            e.optimizer.load_state_dict(of_ranks, load_from_fp32_weights=True)
        else:
            e.optimizer.load_state_dict(saved["optimizer"])
        if e.lr_scheduler is not None:
            e.lr_scheduler.load_state_dict(saved["scheduler"])
        for name in _COUNTS:
            setattr(e, name, saved["counts"][name])


def _part(e):
    """ZeRO's stage, this rank, the number of ranks, and how many numbers of each group this rank holds."""
    stage = e.zero_optimization_stage()
    if not stage:
        return [0, 0, 1, []]
    torch = sys.modules["torch"]
    group = e.optimizer.dp_process_group
    return [int(stage), torch.distributed.get_rank(group), torch.distributed.get_world_size(group), [t.numel() for t in e.optimizer.single_partition_of_fp32_groups]]


def _refuse(e):
    torch, version = sys.modules["torch"], getattr(sys.modules.get("deepspeed"), "__version__", "none")
    kinds = [c.__name__ for c in type(e).__mro__]
    refuse("deepspeed", ("DeepSpeedEngine" not in kinds, "takes what deepspeed.initialize returns first, not a %s" % type(e).__name__, "hand it the engine"))
    stage, optimizer = e.zero_optimization_stage(), type(e.optimizer)
    zero = "DeepSpeedZeroOptimizer" in [c.__name__ for c in optimizer.__mro__]
    refuse(
        "deepspeed",
        (version.split(".")[:2] != ["0", "19"], "knows deepspeed 0.19, not %s" % version, "install deepspeed 0.19, " + _OWN),
        ("PipelineEngine" in kinds, "does not keep a PipelineEngine", "train without pipeline parallelism, " + _OWN),
        (e.has_moe_layers, "does not keep layers of DeepSpeed's MoE", "train without them, " + _OWN),
        (stage == 3, "does not keep ZeRO stage 3", "use stage 2, " + _OWN),
        (zero and e.optimizer.elastic_checkpoint, "does not keep ZeRO's elastic checkpoints", "set zero_optimization.elastic_checkpoint to false"),
        (zero and e.optimizer.cpu_offload, "does not keep an optimizer that is offloaded", "take zero_optimization.offload_optimizer out, " + _OWN),
        (not zero and (stage or not issubclass(optimizer, torch.optim.Optimizer)), "does not keep a %s" % optimizer.__name__, "use ZeRO stage 1 or 2, or stage 0 with neither fp16 nor bf16, " + _OWN),
        (e.torch_autocast_z0_gradscaler, "does not keep the scaler of torch_autocast", "use bfloat16 in torch_autocast, " + _OWN),
        (e.random_ltd_enabled() or e.curriculum_learning_enabled(), "does not keep DeepSpeed's data efficiency", "set data_efficiency.enabled to false, " + _OWN),
    )  # fmt: skip
