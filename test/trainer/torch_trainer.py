"""A trainer with torch: a small model under DistributedDataParallel over gloo, saved after each step.

    torch_trainer.py LOG [LAST [PAUSE]]

It sleeps PAUSE seconds after each step, until there is a file LOG.go.
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import holdfast
except ImportError:
    holdfast = None

LOG = open(sys.argv[1], "a", buffering=1)
LAST = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000_000
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0


def digest(model, optimizer):
    """Over all tensors."""
    held = [*model.state_dict().values(), *(v for state in optimizer.state.values() for v in state.values())]
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in held)).hexdigest()


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def log(*words):
        LOG.write(" ".join(str(w) for w in (os.environ.get("HOLDFAST_GENERATION") or 0, rank) + words) + "\n")

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 16))
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(10 + rank)
    ck, start = None, 0
    if holdfast is not None:
        ck = holdfast.attach()
        ck.track(model=model, optimizer=optimizer, rng=True)
        start = ck.restore()
    log("start", start)
    log("holds", start, digest(model, optimizer))
    for step in range(start + 1, LAST + 1):
        x = torch.randn(8, 16)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log("done", step, loss.item().hex())
        if ck is not None:
            log("saved" if ck.save(step) else "skipped", step)
        if PAUSE and not os.path.exists(sys.argv[1] + ".go"):
            time.sleep(PAUSE)
    dist.destroy_process_group()


main()
