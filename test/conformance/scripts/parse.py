"""Queries the installed PyTorch. `flags`: the flags of its launcher's parser, in JSON. `lines`: for each JSON object {"argv",
"env"} on standard input what torchrun would start, or why it refuses, as one JSON object."""

import contextlib
import io
import json
import os
import sys

sys.path.insert(0, sys.argv[2])  # the site hook's folder: it encodes a LaunchConfig as for the agent

import torch.distributed.run as launcher
from _holdfast_launcher import describe


def flags():
    for action in launcher.get_args_parser()._actions:
        if action.option_strings:
            kind = type(action).__name__
            yield {
                "options": action.option_strings, "boolean": action.nargs == 0, "env": "PET_" + action.dest.upper() if kind in ("env", "check_env") else "",
                "type": getattr(action.type, "__name__", ""), "choices": action.choices and list(action.choices),
            }  # fmt: skip


def started(argv):
    """What torchrun would start."""
    args = launcher.parse_args(argv)
    config, command, rest = launcher.config_from_args(args)
    if callable(command):  # --run-path: this interpreter
        command, rest = sys.executable, ["-u", *rest]
    return {"config": json.dumps(describe(config)), "command": [command, *rest], "standalone": bool(args.standalone)}


def answer(line):
    before = dict(os.environ)
    os.environ.update(line["env"] or {}, OMP_NUM_THREADS="1")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return started(line["argv"])
    except SystemExit:
        return {"refused": said.getvalue().strip().rpartition("\n")[2] or "it ends"}
    except Exception as e:
        return {"refused": "%s: %s" % (type(e).__name__, e)}
    finally:
        os.environ.clear()
        os.environ.update(before)


if sys.argv[1] == "flags":
    print(json.dumps({"torch": launcher.torch.__version__, "flags": list(flags())}))
else:
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))))
