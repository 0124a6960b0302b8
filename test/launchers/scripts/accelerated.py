"""accelerate's Accelerator: prepare, backward, reduce, save_state and load_state."""

import argparse

import torch
from accelerate import Accelerator

import lesson

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()
lesson.begin()
accelerator = Accelerator(cpu=True)
model = lesson.model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
model, optimizer = accelerator.prepare(model, optimizer)
start = lesson.latest()
if start:
    accelerator.load_state(lesson.place(start))
for step in range(start + 1, lesson.STEPS + 1):
    lesson.before(step)
    x, y = lesson.batch(step)
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    lesson.record(step, accelerator.reduce(loss.detach().clone(), "mean"))
    if step % lesson.EVERY == 0:
        accelerator.save_state(lesson.place(step))
        accelerator.wait_for_everyone()
        lesson.saved(step)
        accelerator.wait_for_everyone()
lesson.end()
