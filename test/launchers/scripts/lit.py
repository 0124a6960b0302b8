"""Lightning's Trainer with ModelCheckpoint; the launcher starts the processes."""

import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback

import lesson


class Steps(torch.utils.data.Dataset):
    """This rank's data of each step: no sampler needs the rank's number."""

    def __len__(self):
        return lesson.STEPS

    def __getitem__(self, i):
        x, y = lesson.batch(i + 1)
        return i + 1, x, y


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = lesson.model()

    def training_step(self, batch, i):
        step, x, y = int(batch[0]), batch[1], batch[2]
        lesson.before(step)
        loss = ((self.net(x) - y) ** 2).mean()
        lesson.record(step, self.all_gather(loss.detach()).mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def train_dataloader(self):
        start = lesson.latest()
        return torch.utils.data.DataLoader(torch.utils.data.Subset(Steps(), range(start, lesson.STEPS)), batch_size=None)


class Save(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        step = int(batch[0])
        if step % lesson.EVERY == 0:
            trainer.save_checkpoint(lesson.place(step))
            lesson.saved(step)
            trainer.strategy.barrier()


lesson.begin()
module = Module()
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_epochs=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, callbacks=[Save()],
)
start = lesson.latest()
if start:
    state = torch.load(lesson.place(start), weights_only=False)
    module.load_state_dict(state["state_dict"])
    module.on_load = state["optimizer_states"]


class Restore(Callback):
    def on_train_start(self, trainer, module):
        if start:
            trainer.optimizers[0].load_state_dict(state["optimizer_states"][0])


trainer.callbacks.append(Restore())
trainer.fit(module)
lesson.end()
