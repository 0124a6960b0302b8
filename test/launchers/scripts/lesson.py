"""Code that the scripts share: their data, paths of losses and checkpoints, a failure on demand, and what a rank observes of its
launcher."""

import json
import os
import sys
import time

import torch

OUT = os.environ["LESSON_OUT"]
STEPS = int(os.environ["LESSON_STEPS"])
FAIL_AT = int(os.environ.get("LESSON_FAIL_AT", "-1"))
PACE = float(os.environ.get("LESSON_PACE", "0"))
HOLD_AT = int(os.environ.get("LESSON_HOLD_AT", "-1"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EVERY = 5  # steps from one checkpoint to the next


def begin():
    """Records command line and environment."""
    seen = {"argv": sys.argv, "command": sys.orig_argv, "env": dict(os.environ), "cwd": os.getcwd()}
    path = os.path.join(OUT, "seen-%d-%s.json" % (RANK, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    with open(path, "w") as f:
        json.dump(seen, f)
    torch.manual_seed(7)


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def batch(step):
    g = torch.Generator().manual_seed(1000 * step + RANK)
    x = torch.randn(16, 8, generator=g)
    return x, x.sum(1, keepdim=True)


def before(step):
    time.sleep(PACE)
    while step == HOLD_AT and not os.path.exists(os.path.join(OUT, "go")):
        time.sleep(0.01)
    if step == FAIL_AT and RANK == WORLD - 1:
        raise RuntimeError("failed on demand at step %d" % step)


def record(step, loss):
    """Called by rank 0: writes one whole line per step; a repeated line must be the same."""
    if RANK == 0:
        with open(os.path.join(OUT, "losses"), "a") as f:
            f.write("%s %s\n" % (step, float(loss).hex()))


def place(step):
    return os.path.join(OUT, "checkpoint-%d" % step)


def saved(step):
    """Marks the checkpoint of this step as complete."""
    if RANK == 0:
        with open(os.path.join(OUT, "latest.new"), "w") as f:
            f.write(str(step))
        os.replace(os.path.join(OUT, "latest.new"), os.path.join(OUT, "latest"))


def latest():
    try:
        with open(os.path.join(OUT, "latest")) as f:
            return int(f.read())
    except FileNotFoundError:
        return 0


def end():
    """Lets Gloo's threads release the last tensors: a release while Python ends aborts the process, without an agent as well."""
    time.sleep(0.5)
    torch.distributed.destroy_process_group()
