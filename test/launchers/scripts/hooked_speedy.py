"""deepspeed.initialize; Holdfast replaces its checkpoints."""

import argparse

import deepspeed
import holdfast.deepspeed
import torch
import torch.distributed as dist

import lesson

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=0)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
lesson.begin()
deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))  # otherwise it compiles C++, for which this machine may lack headers
deepspeed.init_distributed(dist_backend="gloo")
ck = holdfast.attach()
with ck.skip_init():
    model = torch.nn.Sequential(lesson.model(), torch.nn.Dropout(0.2))
config = {
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "zero_optimization": {"stage": args.stage}, "zero_allow_untested_optimizer": True,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
engine, _, _, scheduler = deepspeed.initialize(args=args, model=model, optimizer=optimizer, config=config)
ck.track(engine=holdfast.deepspeed.Engine(engine), rng=True)
start = ck.restore()
assert engine.global_steps == start
for step in range(start + 1, lesson.STEPS + 1):
    lesson.before(step)
    for micro in range(2):
        x, y = lesson.batch(2 * step + micro)
        loss = ((engine(x) - y) ** 2).mean()
        engine.backward(loss)
        engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    lesson.record(step, mean / lesson.WORLD)
    lesson.record("rate-%d" % step, optimizer.param_groups[0]["lr"])
    ck.save(step)
lesson.end()
