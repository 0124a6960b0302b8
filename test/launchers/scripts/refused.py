"""Checks what the hooks for transformers and Lightning refuse, with the real classes and a fake agent."""

import os
import unittest
from unittest import mock

import holdfast.lightning
import holdfast.transformers
import lightning
import torch
import transformers
from holdfast import _client
from tests.case import ClientCase


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        return {"loss": self.layer(x).sum()}


class Case(ClientCase):
    def rank(self, agent=True):
        """Makes this process a rank, or one without an agent."""
        ck = self.attach(self.agent() if agent else None)
        patch = mock.patch.object(_client, "_attached", ck)
        patch.start()
        self.addCleanup(patch.stop)
        return ck


class Transformers(Case):
    def trainer(self, **arguments):
        options = {"output_dir": self.folder, "use_cpu": True, "max_steps": 2, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", **arguments}
        return transformers.Trainer(model=Net(), args=transformers.TrainingArguments(**options), train_dataset=[{"x": torch.ones(1)}] * 8)

    def test_without_an_agent_nothing_is_touched(self):
        self.rank(agent=False)
        trainer = self.trainer(auto_find_batch_size=True)
        before = dict(vars(trainer))
        holdfast.transformers.attach(trainer)
        self.assertEqual(vars(trainer), before)

    def test_what_it_cannot_keep(self):
        self.rank()
        for trainer, text in (
            (object(), "takes a transformers.Trainer, not a object"),
            (self.trainer(auto_find_batch_size=True), "auto_find_batch_size"),
            (self.trainer(ignore_data_skip=True), "set ignore_data_skip=False"),
        ):
            with self.assertRaisesRegex(holdfast.TrackError, text):
                holdfast.transformers.attach(trainer)
        with mock.patch.object(transformers, "__version__", "4.57.1"), self.assertRaisesRegex(holdfast.TrackError, "knows transformers 5, not 4.57.1: install transformers 5"):
            holdfast.transformers.attach(self.trainer())
        for name, text in (("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "FSDP")):
            trainer = self.trainer()
            setattr(trainer, name, True)
            with self.assertRaisesRegex(holdfast.TrackError, text):
                holdfast.transformers.attach(trainer)

    def test_a_search_is_refused_and_a_second_training_said(self):
        ck = self.rank()
        trainer = self.trainer()
        holdfast.transformers.attach(trainer)
        with self.assertRaisesRegex(holdfast.TrackError, "no search of hyperparameters"):
            trainer.train(trial=object())
        trainer.train()
        self.assertEqual(ck._last_copied, 1)
        with self.quiet() as said:
            trainer.train()
        self.assertIn("no more steps are kept: only the first train() of a process is kept in memory", said.getvalue())
        self.assertEqual(trainer.state.global_step, 2)

    def test_an_epoch_that_is_cut_short_ends_keeping_and_is_said(self):
        class Cut(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_epoch_stop = True

        ck = self.rank()
        trainer = self.trainer(per_device_train_batch_size=2, max_steps=6)
        trainer.add_callback(Cut())
        holdfast.transformers.attach(trainer)
        with self.quiet() as said:
            trainer.train()
        self.assertIn("no more steps are kept: an epoch ended before its data did", said.getvalue())
        self.assertEqual(ck._last_copied, 0)


class Lightning(Case):
    class Module(lightning.LightningModule):
        def __init__(self, automatic=True, plateau=False):
            super().__init__()
            self.layer, self.automatic_optimization, self.plateau = torch.nn.Linear(1, 1), automatic, plateau

        def training_step(self, batch, i):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            if not self.plateau:
                return optimizer
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "interval": "step", "monitor": "x"}]

    class Loader(torch.utils.data.DataLoader):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    def fit(self, module=None, loader=torch.utils.data.DataLoader, trainer=None, **options):
        options = {"accelerator": "cpu", "devices": 1, "max_steps": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, **options}
        trainer = trainer or lightning.Trainer(callbacks=[holdfast.lightning.Callback()], **options)
        trainer.fit(module or self.Module(), loader(torch.ones(8, 1)))
        return trainer

    def test_without_an_agent_nothing_is_refused(self):
        self.rank(agent=False)
        self.assertEqual(self.fit(self.Module(), self.Loader).global_step, 2)

    def test_what_it_cannot_keep(self):
        self.rank()
        for options, text in (
            ({"module": self.Module(automatic=False)}, "manual optimization"),
            ({"module": self.Module(plateau=True)}, 'ReduceLROnPlateau that steps with each batch: use interval="epoch"'),
            ({"loader": self.Loader}, "not by state_dict"),
        ):
            with self.assertRaisesRegex(holdfast.TrackError, text):
                self.fit(**options)
        with mock.patch.object(holdfast.lightning.pl, "__version__", "2.7.0"), self.assertRaisesRegex(holdfast.TrackError, "knows lightning 2.6, not 2.7.0: install lightning 2.6"):
            self.fit()
        kind = type("FSDPStrategy", (lightning.pytorch.strategies.SingleDeviceStrategy,), {})
        with self.assertRaisesRegex(holdfast.TrackError, 'what a FSDPStrategy holds: use strategy="ddp"'):
            self.fit(strategy=kind("cpu"))

    def test_a_second_fit_is_said(self):
        ck = self.rank()
        trainer = self.fit()
        self.assertEqual(ck._last_copied, 1)
        trainer.fit_loop.epoch_loop.max_steps = 4
        with self.quiet() as said:
            self.fit(trainer=trainer)
        self.assertIn("no more steps are kept: only the first fit() of a process is kept in memory", said.getvalue())
        self.assertEqual(ck._last_copied, 1)


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    unittest.main()
