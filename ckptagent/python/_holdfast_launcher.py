"""Replaces torch's function launch_agent, so that the pod's agent starts the ranks of launchers written in Python.

accelerate, torchtune and other launchers that use elastic_launch of torch.distributed.launcher call launch_agent(config,
entrypoint, args). If entrypoint is a program, the agent starts it with the launcher's present environment, and launch_agent
returns or raises what torch's would. If entrypoint is a Python function, torch runs it as usual, because the agent is another
process and cannot call it.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import threading

from _holdfast_site import agent

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_DEFAULT_SIGNALS = ",".join(_SIGNALS)


def wrap(api):
    """Called with the module torch.distributed.launcher.api once it has been imported."""
    torchs = api.launch_agent

    @functools.wraps(torchs)
    def launch_agent(config, entrypoint, args, *more, **named):
        if not isinstance(entrypoint, str) or "HOLDFAST_LOCAL_RANK" in os.environ or agent() is None:
            return torchs(config, entrypoint, args, *more, **named)
        return hand_over(api, config, entrypoint, args)

    api.launch_agent = launch_agent


def hand_over(api, config, entrypoint, args):
    if not config.run_id:
        import uuid

        config.run_id = str(uuid.uuid4().int)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = getattr(config, "signals_to_handle", _DEFAULT_SIGNALS)  # as torch does
    line = ["launch", "--", "torch.distributed.launcher.api", json.dumps(describe(config)), entrypoint] + [str(a) for a in args]
    answer, code, got = ask(line)
    if answer is None:
        raise RuntimeError("holdfast: the launcher's shim exited with code %s and no result" % code)
    if answer.get("refused"):
        raise RuntimeError("holdfast: " + answer["refused"])
    if got is not None:
        from torch.distributed.elastic.multiprocessing import SignalException

        raise SignalException("Process %d got signal: %s" % (os.getpid(), got), sigval=got)
    base = answer.get("baseRank", 0)
    if answer["exit"] == 0:
        return dict.fromkeys(range(base, base + answer.get("ranks", 0)))
    raise child_failed(api._get_entrypoint_name(entrypoint, list(args)), answer, base)


def describe(config):
    """The options of a LaunchConfig that the agent needs; names those that it cannot honour."""
    refused = []
    for name, neutral in (("event_log_handler", "null"), ("signals_to_handle", _DEFAULT_SIGNALS), ("numa_options", None)):
        value = getattr(config, name, neutral)
        if value != neutral:
            refused.append("%s=%s" % (name, value))
    logs = getattr(config, "logs_specs", None)
    if logs is not None and type(logs).__name__ != "DefaultLogsSpecs":
        refused.append("logs_specs=%s" % type(logs).__name__)
    ranks = getattr(logs, "_local_ranks_filter", None)
    return {
        "min_nodes": config.min_nodes, "max_nodes": config.max_nodes, "nproc_per_node": config.nproc_per_node, "role": config.role,
        "run_id": str(config.run_id), "max_restarts": config.max_restarts, "shutdown_timeout": getattr(config, "shutdown_timeout", None),
        "virtual_local_rank": bool(getattr(config, "virtual_local_rank", False)), "refused": refused,
        "logs": {
            "dir": getattr(logs, "_root_log_dir", None) or "", "redirects": streams(getattr(logs, "_redirects", 0)), "tee": streams(getattr(logs, "_tee", 0)),
            "ranks": sorted(ranks) if ranks else None, "prefix": getattr(config, "log_line_prefix_template", None) or "",
            "outFilters": getattr(config, "duplicate_stdout_filters", None), "errFilters": getattr(config, "duplicate_stderr_filters", None),
        },
    }  # fmt: skip


def streams(setting):
    """torch's Std, or one for each local rank."""
    if isinstance(setting, dict):
        return {"of": {str(rank): int(value) for rank, value in setting.items()}}
    return {"all": int(setting)}


def ask(line):
    """Runs the shim. Returns its result or None, its exit code, and the signal that this process received meanwhile or None."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    got = []
    try:
        env = dict(os.environ, HOLDFAST_LAUNCH_RESULT=str(write))
        child = subprocess.Popen([agent()] + line, env=env, pass_fds=[write])
        os.close(write)
        write = -1
        before = forward(child, got)
        try:
            with os.fdopen(read, "rb", closefd=False) as f:
                text = f.read()
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    return (json.loads(text) if text else None), code, (got[0] if got else None)


def forward(child, got):
    """Forwards signals to the child, where handlers can be set; returns the previous handlers."""
    before = {}
    if threading.current_thread() is not threading.main_thread():
        return before

    def pass_on(number, frame):
        got.append(signal.Signals(number))
        child.send_signal(number)

    for name in _SIGNALS:
        number = getattr(signal, name)
        handler = signal.getsignal(number)
        if handler is not None:  # None: a handler that C code set, which cannot be restored
            before[number] = handler
            signal.signal(number, pass_on)
    return before


def child_failed(name, answer, base):
    """The exception that torch raises when ranks have failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {}
    for f in answer.get("failures") or []:
        failure = ProcessFailure(local_rank=f["local"], pid=f["pid"], exitcode=-f["signal"] if f.get("signal") else f["code"], error_file=f.get("errorFile", ""))
        if failure.error_file == "<N/A>":
            failure.timestamp = f["at"]
        failures[base + f["local"]] = failure
    if not failures:  # a rank of another pod failed, or none did
        failure = ProcessFailure(local_rank=-1, pid=-1, exitcode=answer["exit"], error_file="")
        failure.message = "no rank of this pod failed by itself; the gang ended with code %d: %s" % (answer["exit"], answer.get("message", ""))
        failures[-1] = failure
    return ChildFailedError(name=name, failures=failures)
