"""transformers' Trainer as its users write it, with its own checkpoints; the only lines for Holdfast are skip_init and attach."""

import os

import holdfast.transformers
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import lesson


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(lesson.model(), torch.nn.Dropout(0.2))

    def forward(self, x, y):
        return {"loss": ((self.net(x) - y) ** 2).mean()}


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(7 * 16, 8, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.x[i].sum(0, keepdim=True)}


class Note(TrainerCallback):
    """Records what the Trainer logs."""

    def on_step_begin(self, args, state, control, **kwargs):
        lesson.before(state.global_step + 1)

    def on_log(self, args, state, control, logs, **kwargs):
        if "train_loss" in logs:
            lesson.record("all", logs["train_loss"])
        elif "eval_loss" in logs:
            lesson.record("eval-%d" % state.global_step, logs["eval_loss"])
        else:
            lesson.record(str(state.global_step), logs["loss"])
            lesson.record("norm-%d" % state.global_step, logs["grad_norm"])
            lesson.record("rate-%d" % state.global_step, logs["learning_rate"])


lesson.begin()
arguments = TrainingArguments(
    output_dir=os.path.join(lesson.OUT, "own"), max_steps=lesson.STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True, ddp_backend="gloo",
    save_steps=6, save_total_limit=2, eval_strategy="steps", eval_steps=4, logging_steps=1, learning_rate=0.05, warmup_steps=3, report_to=[], disable_tqdm=True, seed=7, label_names=["y"],
)
with holdfast.attach().skip_init():
    net = Net()
trainer = Trainer(model=net, args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Note()])
holdfast.transformers.attach(trainer)
trainer.train()
lesson.end()
