"""Code shared by export_train.py and export_stock.py: forks all ranks from one process, so that torch is imported once."""

import os
import sys
import traceback

import ports
import torch._dynamo  # otherwise each rank's first optimizer step would import it
import torch.distributed as dist


def run(world, rank_main):
    """Runs rank_main(rank) in a process group of that many forked ranks. Ends this process if one of them fails."""
    with ports.kept() as s:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), WORLD_SIZE=str(world))
        children = [_fork(rank, rank_main) for rank in range(world)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        sys.exit("ranks ended with %s" % codes)


def _fork(rank, rank_main):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["RANK"] = str(rank)
        dist.init_process_group("gloo")
        rank_main(rank)
        dist.barrier()
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def body(number):
    """A small model whose shapes divide unevenly among 2 and 4 ranks."""
    import torch
    from torch import nn

    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 5))


def flat(path, value, found):
    """key -> whole tensor, by the names of torch.distributed.checkpoint."""
    if isinstance(value, dict):
        for k, v in value.items():
            flat(path + "." + str(k) if path else str(k), v, found)
    elif hasattr(value, "full_tensor"):
        found[path] = value.full_tensor().clone()
    elif hasattr(value, "data_ptr"):
        found[path] = value.detach().clone()
    return found
