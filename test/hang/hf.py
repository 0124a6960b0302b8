"""transformers' Trainer as its users write it: once it evaluates for long, and then saves to slow storage. It knows nothing of Holdfast.

    hf.py FOLDER STORAGE
"""

import os
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

FOLDER, STORAGE = sys.argv[1:]
#: The silence follows after so many steps. In it each rank evaluates for so many seconds; slow storage takes 64 KiB a second.
AT, LAST, PAUSE, EVALUATES = 25, 40, 0.2, 45
LAYERS, SIZE, BATCH = 16, 128, 4

os.makedirs(FOLDER, exist_ok=True)
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(LAYERS)))

    def forward(self, x, y):
        out = self.net(x)
        return {"loss": (out - y).square().mean(), "logits": out}


class Rows(torch.utils.data.Dataset):
    """So many rows, each of which is read from a file and takes that long."""

    def __init__(self, rows, pause=0):
        self.rows, self.pause, self.file = rows, pause, open(sys.executable, "rb", buffering=0)

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        os.pread(self.file.fileno(), 4 << 10, i << 12)
        time.sleep(self.pause)
        return {"x": torch.full((SIZE,), i / self.rows), "y": torch.ones(SIZE)}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(PAUSE)
        if state.global_step == AT:
            open(os.path.join(FOLDER, "quiet"), "w").close()
        if state.global_step == LAST:
            control.should_evaluate = control.should_save = False


def main():
    arguments = TrainingArguments(
        output_dir=os.path.join(STORAGE, os.path.basename(FOLDER)), max_steps=LAST, per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH,
        eval_strategy="steps", eval_steps=AT, save_steps=AT, logging_steps=AT, use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True,
        label_names=["y"],
    )
    each = 0.25  # seconds
    rows = int(EVALUATES / each) * int(os.environ["WORLD_SIZE"])
    trainer = Trainer(model=Net(), args=arguments, train_dataset=Rows(1024), eval_dataset=Rows(rows, each), callbacks=[Steps()])
    trainer.train()


main()
