"""Plain DistributedDataParallel with its own checkpoint."""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

import lesson


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--local-rank", "--local_rank", type=int, default=-1)
    args = parser.parse_args()
    lesson.begin()
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(lesson.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    start = lesson.latest()
    if start:
        state = torch.load(lesson.place(start), weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(start + 1, lesson.STEPS + 1):
        lesson.before(step)
        x, y = lesson.batch(step)
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        lesson.record(step, mean / lesson.WORLD)
        if step % lesson.EVERY == 0:
            if lesson.RANK == 0:
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, lesson.place(step))
            lesson.saved(step)
            dist.barrier()
    lesson.end()


if __name__ == "__main__":
    main()
