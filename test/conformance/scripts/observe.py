"""Writes, as JSON, all that a process can observe of its start; then fails once on demand, so that ranks are restarted.

observe.py FOLDER: rank R of attempt A writes FOLDER/seen-R-A. In attempt 0 rank 0 waits for the file FOLDER/go and is killed.
"""

import gc
import json
import os
import resource
import signal
import stat
import sys
import threading
import time

STATUS = ("Uid", "Gid", "Groups", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list")


def descriptors():
    """Open descriptors, and those that a child would inherit."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
            kind = stat.S_IFMT(os.fstat(int(name)).st_mode)
        except OSError:  # the descriptor of this listing
            continue
        kept = "kept" if os.get_inheritable(int(name)) else "closed"
        found[name] = "%s %s %s" % ("pipe" if stat.S_ISFIFO(kind) else target, kept, bool(os.get_blocking(int(name))))
    return found


def status():
    with open("/proc/self/status") as f:
        pairs = dict(line.rstrip("\n").split(":", 1) for line in f)
    return {name: pairs.get(name, "").split() for name in STATUS}


def read(name):
    try:
        with open("/proc/self/" + name) as f:
            return f.read()
    except OSError as e:
        return str(e)


def tree():
    """The ancestors of this process, up to the first that outlives the ranks."""
    return {"leads a session": os.getsid(0) == os.getpid(), "leads a group": os.getpgid(0) == os.getpid(), "terminal": read("stat").rpartition(")")[2].split()[4]}


def facts():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "cmdline": read("cmdline"), "comm": read("comm"), "cwd": os.getcwd(), "path": sys.path,
        "executable": sys.executable, "exe": os.readlink("/proc/self/exe"), "prefix": sys.prefix, "flags": str(sys.flags), "warnoptions": sys.warnoptions, "xoptions": sys._xoptions,
        "main": {k: str(v) if k in ("__file__", "__name__", "__package__", "__cached__", "__doc__") else type(v).__name__ for k, v in vars(main).items()},
        "env": dict(os.environ), "umask": umask(), "limits": {line[:26].strip(): line[26:].split() for line in read("limits").splitlines()}, "descriptors": descriptors(), "status": status(), "tree": tree(),
        "handlers": {s.name: str(signal.getsignal(s)).partition(" at 0x")[0] for s in signal.valid_signals() if isinstance(s, signal.Signals)},
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "policy": os.sched_getscheduler(0), "oom": read("oom_score_adj"), "personality": read("personality"),
        "mounts": [os.readlink("/proc/self/ns/" + n) for n in ("mnt", "pid", "net", "ipc", "uts")], "cgroup": read("cgroup"), "timerslack": read("timerslack_ns"),
        "threads": threading.active_count(), "daemon": threading.current_thread().name, "gc": [gc.isenabled(), gc.get_threshold()], "recursion": sys.getrecursionlimit(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__, threading.excepthook is threading.__excepthook__],
        "trace": [str(sys.gettrace()), str(sys.getprofile())], "streams": [[f.encoding, f.errors, f.line_buffering, f.write_through, f.isatty()] for f in (sys.stdin, sys.stdout, sys.stderr)],
        "usage": resource.getrusage(resource.RUSAGE_CHILDREN).ru_nsignals,
    }  # fmt: skip


def state():
    """Process state that imports may change or that libraries keep."""
    import atexit, faulthandler, locale, logging, multiprocessing, socket, tempfile, warnings
    import numpy

    return {
        "warnings": [str(f) for f in warnings.filters], "atexit": atexit._ncallbacks(), "faulthandler": faulthandler.is_enabled(), "locale": locale.setlocale(locale.LC_ALL),
        "logging": [logging.root.level, [type(h).__name__ for h in logging.root.handlers], logging.root.manager.disable], "start method": multiprocessing.get_start_method(allow_none=True),
        "process": [multiprocessing.current_process().name, multiprocessing.parent_process() is None, multiprocessing.current_process().daemon, len(multiprocessing.active_children())],
        "timeout": socket.getdefaulttimeout(), "tempdir": tempfile.tempdir, "switch interval": sys.getswitchinterval(), "digits": sys.get_int_max_str_digits(), "wakeup": signal.set_wakeup_fd(-1),
        "timers": [signal.getitimer(t) for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)], "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "finders": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path], "path hooks": [getattr(h, "__qualname__", str(h)) for h in sys.path_hooks], "dont_write_bytecode": sys.dont_write_bytecode,
        "threads": [t.name for t in threading.enumerate()], "tasks": len(os.listdir("/proc/self/task")), "children": read("task/%d/children" % os.getpid()), "core": read("coredump_filter"), "priority": read("stat").rpartition(")")[2].split()[15:17],
        "numpy": [str(numpy.geterr()), numpy.get_printoptions()["precision"]], "modules": {name: True for name in sys.modules},
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.initial_seed() == torch.default_generator.initial_seed(),
                  str(torch.get_default_device()), torch.multiprocessing.get_sharing_strategy(), torch.cuda.is_initialized(), torch.distributed.is_initialized(), torch.get_float32_matmul_precision()],
    }  # fmt: skip


def draws():
    """Values that differ from process to process."""
    import multiprocessing, random, secrets, uuid
    import numpy

    return {
        "random": random.random(), "generator": random.Random().random(), "numpy": numpy.random.rand(), "numpy generator": numpy.random.default_rng().random(), "uuid": str(uuid.uuid4()),
        "secrets": secrets.token_hex(), "authkey": bytes(multiprocessing.current_process().authkey).hex(), "pid": os.getpid(), "torch": torch.rand(1).item(),
    }  # fmt: skip


def umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return oct(mask)


folder = sys.argv[1]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
seen = facts()  # before anything else is imported

import torch

torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1).step()  # the first step, after which the agent starts standbys
seen["draws"], seen["state"] = draws(), state()
name = os.path.join(folder, "seen-%s-%s" % (os.environ["RANK"], attempt))
with open(name + ".new", "w") as f:
    json.dump(seen, f)
os.rename(name + ".new", name)
if attempt == "0":
    while os.environ["RANK"] != "0" or not all(os.path.exists(os.path.join(folder, name)) for name in ("go", "seen-1-0")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
