"""Runs scripts in forks of one process that has imported torch: an import for each rank would take longer than what the ranks do.
The ranks run without the site hook.
"""

import multiprocessing
import os
import runpy
import sys
import warnings

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.device_mesh", "torch.distributed.tensor.parallel"]
)


def start(script, args, env, out, errors):
    """A process of multiprocessing that runs script with the environment env, and writes to the files out and errors."""
    process = _CONTEXT.Process(target=_run, args=(str(script), list(args), env, out, errors))
    process.start()
    return process


def _run(script, args, env, out, errors):
    os.environ.clear()
    os.environ.update(env)
    for path, stream in ((out, sys.stdout), (errors, sys.stderr)):
        to = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(to, stream.fileno())
        os.close(to)
    warnings.simplefilter("ignore")
    sys.modules["torch"].set_num_threads(1)
    sys.argv = [script, *args]
    runpy.run_path(script, run_name="__main__")
