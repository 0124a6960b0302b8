"""Keeps Hugging Face's Trainer in memory at every step and restores it exactly.

    holdfast.transformers.attach(trainer)

A state is kept when the next step begins. By then the Trainer has fetched the batches of that step, logged, evaluated and
saved. The Trainer finds the position in the data by its own resume, from a folder that names the step. All other state is
restored from memory.
"""

import os
import shutil
import tempfile

import transformers
from transformers.trainer_callback import ExportableState

from . import _client, _rng
from ._kinds import RestoreError
from ._trainers import Log, refuse

# Methods of the trainer that are replaced; for the first three the folder is the first argument.
_SEAMS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "train")
_METERS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen", "current_flos")  # of the logged losses


def attach(trainer):
    """Keeps the state of trainer's first train() in memory. Outside of a Holdfast job it does nothing."""
    ck = _client.attach()
    if not ck.active:
        ck.restore()
        return
    _refuse(trainer)
    trainer.add_callback(_Callback(trainer, ck))


def _refuse(trainer):
    args, version, out = getattr(trainer, "args", None), transformers.__version__, "or take holdfast.transformers.attach out"
    refuse(
        "transformers",
        (not isinstance(trainer, transformers.Trainer), "takes a transformers.Trainer, not a %s" % type(trainer).__name__, "hand it the trainer"),
        (version.split(".")[0] != "5" or not all(hasattr(trainer, s) for s in _SEAMS), "knows transformers 5, not %s" % version, "install transformers 5, " + out),
        (getattr(trainer, "is_deepspeed_enabled", False), "does not keep what DeepSpeed holds", "train without a DeepSpeed configuration, " + out),
        (getattr(trainer, "is_fsdp_enabled", False), "does not keep what FSDP holds", "train with DistributedDataParallel, " + out),
        (getattr(args, "auto_find_batch_size", False), "cannot follow auto_find_batch_size, which begins again at step 0", "set per_device_train_batch_size and auto_find_batch_size=False"),
        (getattr(args, "ignore_data_skip", False), "cannot find the place in the data with ignore_data_skip", "set ignore_data_skip=False"),
    )  # fmt: skip


class _Callback(transformers.TrainerCallback):
    def __init__(self, trainer, ck):
        self._trainer, self._ck, self._kept = trainer, ck, ck.resume_step  # kept: the newest step
        self._folder = ""  # the folder that the trainer resumes from, if it is ours
        self._trained = self._tracked = self._off = self._resumed = False
        self._log, self._rng, self._epoch_rng, self._meters = Log(), None, None, None
        self._theirs = {name: getattr(trainer, name) for name in _SEAMS}
        for name, ours in zip(_SEAMS, (self._load_model, self._load_rest, self._load_rng, self._train)):
            setattr(trainer, name, ours)

    # Replacements for the trainer's methods.

    def _train(self, resume_from_checkpoint=None, trial=None, **kwargs):
        refuse("transformers", (trial is not None, "keeps one training, no search of hyperparameters", "take holdfast.transformers.attach out"))
        first, self._trained, t, a = not self._trained, True, self._trainer, self._trainer.args
        if not first:
            self._stop("only the first train() of a process is kept in memory; later ones start from their beginning after a failure")
        if not first or not self._ck.resume_step:
            return self._theirs["train"](resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self._folder = tempfile.mkdtemp(prefix="holdfast-")
        transformers.TrainerState(
            global_step=self._ck.resume_step, train_batch_size=t._train_batch_size, stateful_callbacks=[*self._stateful(), t.control],
            logging_steps=a.logging_steps, eval_steps=a.eval_steps, save_steps=a.save_steps,
        ).save_to_json(os.path.join(self._folder, "trainer_state.json"))  # fmt: skip
        return self._theirs["train"](resume_from_checkpoint=self._folder, **kwargs)

    def _load_model(self, folder, *args, **kwargs):
        if folder != self._folder:
            self._theirs["_load_from_checkpoint"](folder, *args, **kwargs)

    def _load_rest(self, folder):
        if folder != self._folder:
            return self._theirs["_load_optimizer_and_scheduler"](folder)
        shutil.rmtree(folder)  # its content has been read, and a kill leaves no file behind
        self._restore()

    def _load_rng(self, folder):
        self._theirs["_load_rng_state"](folder) if folder != self._folder else _rng.put(self._rng)

    def _restore(self):
        t, self._tracked = self._trainer, True
        parts = {"model": t.model, "optimizer": t.optimizer, "scheduler": t.lr_scheduler, "trainer": self, "scaler": getattr(t.accelerator, "scaler", None)}
        self._ck.track(**{name: part for name, part in parts.items() if part is not None})
        self._ck.restore()

    # The state besides model, optimizer, scheduler and scaler.

    def state_dict(self):
        t = self._trainer
        return {
            "state": {k: v for k, v in vars(t.state).items() if k not in ("log_history", "stateful_callbacks")},
            "log": self._log.lines(t.state.log_history),
            "callbacks": [[type(c).__name__, c.state()["attributes"]] for c in self._stateful()],
            "meters": {name: getattr(t, name) for name in _METERS if hasattr(t, name)},
            "rng": _rng.get(),
            "epoch_rng": self._epoch_rng,
        }

    def load_state_dict(self, saved):
        t, mine = self._trainer, self._stateful()
        if (were := [name for name, _ in saved["callbacks"]]) != (are := [type(c).__name__ for c in mine]):
            raise RestoreError("the trainer had the callbacks %s and now has %s" % (were, are))
        for callback, (_, attributes) in zip(mine, saved["callbacks"]):
            vars(callback).update(attributes)
        vars(t.state).update(saved["state"], log_history=Log.read(saved["log"]))
        self._rng, self._epoch_rng, self._meters, self._resumed = saved["rng"], saved["epoch_rng"], saved["meters"], True

    def _stateful(self):
        return [c for c in self._trainer.callback_handler.callbacks if isinstance(c, ExportableState)]

    # Called by the trainer.

    def on_train_begin(self, args, state, control, **kwargs):
        if not (self._tracked or self._off):
            self._restore()
        for name, value in (self._meters or {}).items():
            setattr(self._trainer, name, value.to(args.device) if hasattr(value, "to") else value)
        self._meters = None

    def on_epoch_begin(self, args, state, control, **kwargs):
        """The random states at this time decide the order of the epoch's data, also when training resumes within the epoch."""
        first = self._epoch_rng is None
        if self._resumed:
            self._resumed = False
            return _rng.put(self._epoch_rng)
        if not first and state.epoch % 1:
            self._stop("an epoch ended before its data did, or the data has no length, so that the Trainer could not resume; set max_steps and let the data last that long")
        self._epoch_rng = _rng.get()
        if not first:
            self._keep(state)

    def on_step_begin(self, args, state, control, **kwargs):
        self._keep(state)

    def _keep(self, state):
        if not self._off and state.global_step > self._kept:
            self._kept = state.global_step
            self._ck.save(state.global_step)

    def _stop(self, why):
        if not self._off:
            _client._say("no more steps are kept: %s" % why)
        self._off = True
