"""deepspeed.initialize with ZeRO stage 1, save_checkpoint and load_checkpoint."""

import argparse

import deepspeed
import torch
import torch.distributed as dist

import lesson

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
lesson.begin()
deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))  # otherwise it compiles C++, for which this machine may lack headers
deepspeed.init_distributed(dist_backend="gloo")
model = lesson.model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
config = {"train_micro_batch_size_per_gpu": 16, "zero_optimization": {"stage": 0}, "zero_allow_untested_optimizer": True}
engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer, config=config)
start = lesson.latest()
if start:
    engine.load_checkpoint(lesson.OUT, tag="checkpoint-%d" % start)
for step in range(start + 1, lesson.STEPS + 1):
    lesson.before(step)
    x, y = lesson.batch(step)
    loss = ((engine(x) - y) ** 2).mean()
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    lesson.record(step, mean / lesson.WORLD)
    if step % lesson.EVERY == 0:
        engine.save_checkpoint(lesson.OUT, tag="checkpoint-%d" % step)
        dist.barrier()
        lesson.saved(step)
        dist.barrier()
lesson.end()
