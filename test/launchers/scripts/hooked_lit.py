"""Lightning's Trainer as its users write it, with its own ModelCheckpoint; the only lines for Holdfast are skip_init and the callback."""

import os

import holdfast.lightning
import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import lesson


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(14 * 8, 8, generator=torch.Generator().manual_seed(11))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].sum(0, keepdim=True)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(lesson.model(), torch.nn.Dropout(0.2))

    def training_step(self, batch, i):
        x, y = batch
        loss = ((self.net(x) - y) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.log("val_loss", ((self.net(x) - y) ** 2).mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8), "interval": "step"}]


class Note(Callback):
    """Records losses and rates of each step."""

    def on_train_batch_start(self, trainer, module, batch, i):
        lesson.before(trainer.global_step + 1)

    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        lesson.record("batch-%d-%d" % (trainer.current_epoch, i), outputs["loss"])
        if (i + 1) % trainer.accumulate_grad_batches == 0 or i + 1 == trainer.num_training_batches:
            lesson.record(str(trainer.global_step), trainer.callback_metrics["loss"])
            lesson.record("rate-%d" % trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            lesson.record("val-%d" % trainer.global_step, trainer.callback_metrics["val_loss"])


lesson.begin()
data = torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True)
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_steps=lesson.STEPS,
    accumulate_grad_batches=2, val_check_interval=4, num_sanity_val_steps=0, logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[Note(), ModelCheckpoint(os.path.join(lesson.OUT, "own"), monitor="val_loss", save_top_k=2), holdfast.lightning.Callback()],
)
with holdfast.attach().skip_init():
    module = Module()
trainer.fit(module, data, torch.utils.data.DataLoader(Rows(), batch_size=16))
lesson.end()
