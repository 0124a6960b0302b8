"""Keeps Lightning's Trainer in memory at every step and restores it exactly.

    import holdfast.lightning

    trainer = lightning.Trainer(..., callbacks=[holdfast.lightning.Callback()])

Lightning calls a CheckpointIO on rank 0 alone, between barriers, and only if fit() has a path; so Holdfast uses a callback.
The callback keeps the checkpoint that Lightning itself would save, when the next batch begins: after validation and after
other callbacks. The hooks on_save_checkpoint run for that checkpoint. Lightning restores the checkpoint without the position
in the data. The callback fetches the epoch's past batches again and drops them.
"""

import importlib
import sys
import warnings

from . import _client, _kinds, _rng
from ._trainers import refuse

pl = sys.modules.get("lightning.pytorch") or sys.modules.get("pytorch_lightning") or importlib.import_module("lightning.pytorch")
_set_sampler_epoch = importlib.import_module("lightning.fabric.utilities.data" if pl.__name__ == "lightning.pytorch" else "lightning_fabric.utilities.data")._set_sampler_epoch

_LEAVE = "take holdfast.lightning.Callback out"


class _State:
    """The object that the client tracks; Lightning itself calls a callback's own state_dict."""

    def __init__(self, callback, module):
        self.state_dict, self.load_state_dict, self.module = callback._take, callback._bring, module


class Callback(pl.Callback):
    """Keeps the state of the first fit() in memory. Outside of a Holdfast job it does nothing."""

    def __init__(self):
        self._ck = self._trainer = self._saved = self._epoch_rng = None
        self._on = False
        self._kept = 0  # the newest step

    def setup(self, trainer, pl_module, stage):
        if stage != "fit":
            return
        if self._ck is not None:
            if self._on:
                _client._say("no more steps are kept: only the first fit() of a process is kept in memory; later ones start from their beginning after a failure")
            self._on = False
            return
        self._ck, self._trainer = _client.attach(), trainer
        if not self._ck.active:
            self._ck.restore()
            return
        strategy = type(trainer.strategy).__name__
        refuse(
            "lightning",
            (not pl.__version__.startswith("2.6."), "knows lightning 2.6, not %s" % pl.__version__, "install lightning 2.6, or %s" % _LEAVE),
            (not isinstance(trainer, pl.Trainer), "was imported for %s, and the trainer is a %s" % (pl.__name__, type(trainer).__module__), "import holdfast.lightning after the package of your Trainer"),
            (strategy not in ("DDPStrategy", "SingleDeviceStrategy"), "does not keep what a %s holds" % strategy, 'use strategy="ddp", or %s' % _LEAVE),
            (not pl_module.automatic_optimization, "does not keep gradients, which manual optimization may add up over steps", "use automatic optimization, or %s" % _LEAVE),
        )  # fmt: skip
        self._on = True
        trainer.fit_loop._load_combined_loader_states = self._before_data(trainer.fit_loop._load_combined_loader_states)
        self._ck.track(trainer=_State(self, pl_module))
        self._kept = self._ck.restore()
        if self._saved:
            trainer._checkpoint_connector.resume_start = self._resume_start

    def _resume_start(self, checkpoint_path=None, weights_only=None):
        connector = self._trainer._checkpoint_connector
        del connector.resume_start
        connector._ckpt_path, connector._loaded_checkpoint = checkpoint_path, self._saved["checkpoint"]

    def _before_data(self, theirs):
        """Wrapped: called before the first data is fetched. The random states at that time decide its order."""

        def load_combined_loader_states():
            theirs()
            self._epoch_rng = _rng.get()

        return load_combined_loader_states

    def _take(self):
        checkpoint = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for part in (progress["total"], progress["current"]):
            part["ready"] = part["completed"]  # the batch that begins is not completed
        progress["is_last_batch"] = False
        return {"checkpoint": checkpoint, "rng": _rng.get(), "epoch_rng": self._epoch_rng}

    def _bring(self, saved):
        self._saved = saved

    def on_train_start(self, trainer, pl_module):
        if not self._on:
            return
        loop = trainer.fit_loop
        loaders = loop._combined_loader.flattened
        refuse(
            "lightning",
            (any(_kinds.is_zero(o) or hasattr(o, "consolidate_state_dict") for o in trainer.optimizers), "does not keep an optimizer whose state Lightning gathers from all ranks", "use a plain optimizer, or %s" % _LEAVE),
            (any(c.reduce_on_plateau and c.interval == "step" for c in trainer.lr_scheduler_configs), "cannot resume a ReduceLROnPlateau that steps with each batch", 'use interval="epoch", or %s' % _LEAVE),
            (any(hasattr(d, "load_state_dict") for d in loaders), "finds its position in the data itself, without a loader's state_dict()", "use a DataLoader of torch.utils.data, or %s" % _LEAVE),
        )  # fmt: skip
        if self._saved:
            self._find_place(loop, loaders)

    def _find_place(self, loop, loaders):
        done = loop.epoch_loop.batch_progress.current.completed
        for loader in loaders:
            _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
        self._epoch_rng = self._saved["epoch_rng"]
        _rng.put(self._epoch_rng)
        fetcher = iter(loop._data_fetcher)
        for _ in range(done):
            next(fetcher)
        fetcher.fetched -= done  # the loop adds them itself
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch ended")

    def on_train_epoch_start(self, trainer, pl_module):
        if self._on and trainer.current_epoch > 0:  # for the first epoch, on_train_start or the loader's hook has set it
            self._epoch_rng = _rng.get()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if not self._on:
            return
        if self._saved:
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._saved["checkpoint"]["loops"]["fit_loop"]["epoch_loop.state_dict"]["_batches_that_stepped"]
            _rng.put(self._saved["rng"])
            self._saved = None
        elif trainer.global_step > self._kept:
            self._kept = trainer.global_step
            self._ck.save(self._kept)
