"""The script that test_donor runs on two ranks: it trains a replicated model and prints its losses."""

import sys

import torch
import torch.distributed as dist

import holdfast

SEED, LAST, SAVE = (int(a) for a in sys.argv[1:4])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 40))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ck = holdfast.attach()
    ck.track(model=model, optimizer=optimizer, rng=True)
    for step in range(ck.restore() + 1, LAST + 1):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        loss = model(torch.randn(4, 300, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss of step %d: %s" % (step, loss.item().hex()), flush=True)
        if step == SAVE:
            assert ck.save(step)
    print("random %s" % torch.rand(1).item().hex(), flush=True)
    dist.destroy_process_group()


main()
