"""Lightning's Trainer as its users write it: once it saves to slow storage, and then validates for long. It knows nothing of Holdfast.

    lit.py FOLDER STORAGE
"""

import os
import sys
import time

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

FOLDER, STORAGE = sys.argv[1:]
#: The silence follows after so many steps. In it slow storage takes 64 KiB a second, and each rank validates for so many seconds.
AT, LAST, PAUSE, VALIDATES = 25, 40, 0.2, 45
LAYERS, SIZE, BATCH = 16, 128, 4

os.makedirs(FOLDER, exist_ok=True)
torch.set_num_threads(1)


class Rows(torch.utils.data.Dataset):
    """So many rows, each of which is read from a file and takes that long."""

    def __init__(self, rows, pause=0):
        self.rows, self.pause, self.file = rows, pause, open(sys.executable, "rb", buffering=0)

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        os.pread(self.file.fileno(), 4 << 10, i << 12)
        time.sleep(self.pause)
        return torch.full((SIZE,), i / self.rows), torch.ones(SIZE)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(LAYERS)))

    def loss(self, batch):
        x, y = batch
        return (self.net(x) - y).square().mean()

    def training_step(self, batch, i):
        return self.loss(batch)

    def validation_step(self, batch, i):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        time.sleep(PAUSE)
        if trainer.global_step == AT:
            open(os.path.join(FOLDER, "quiet"), "w").close()


def main():
    each = 0.25  # seconds
    rows = int(VALIDATES / each) * int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_steps=LAST,
        val_check_interval=AT, num_sanity_val_steps=0, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Steps(), ModelCheckpoint(os.path.join(STORAGE, os.path.basename(FOLDER)), every_n_train_steps=AT)],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(1024), batch_size=BATCH), torch.utils.data.DataLoader(Rows(rows, each), batch_size=BATCH))


main()
