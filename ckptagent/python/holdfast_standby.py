"""Holds a standby before the first line of its script, with the modules imported that the script is going to want.

A standby is started by the rank's own command line, so nothing has to be imitated: when hold() returns, Python goes on
and runs the script as it always does. What has imported stays as a source: it forks the standby, and another one a
moment after that has become the rank, so only the first one costs imports. Where a fork would not be a faithful copy,
because the imports have started threads or opened sockets, the process becomes the rank itself.
The lines on the control socket stand in docs/architecture.md.
"""

import os
import sys

# Modules that act when they are imported: they open devices, start threads or join a group.
_NEVER = (
    "mpi4py.MPI", "pycuda.autoinit", "cupy", "horovod", "tensorflow", "jax", "jaxlib", "torch_xla", "IPython", "antigravity",
    "this", "idlelib", "turtle", "tkinter",
)  # fmt: skip

# The longest, in seconds, that a rank waits for rank 0's store before its script goes on.
_STORE_LIMIT = 0.5

# How long, in seconds, a source leaves the processors to the ranks that have just started before it forks again.
_REST = 0.3


def hold():
    """Returns when this process is to be the rank; ends it quietly when it is not needed any more."""
    import gc
    import json
    import socket

    control = socket.socket(fileno=int(os.environ.pop("HOLDFAST_STANDBY_FD")))
    name = _rename("hf-standby")
    lines = control.makefile("r", encoding="utf-8", newline="\n")
    try:
        modules = _next(lines, json).get("modules", [])
        collects, batch, before = gc.isenabled(), _batch(), _open_files()
        gc.disable()  # what an import makes stays: looking for garbage in it takes a fifth of the time
        imported, skipped = warm(modules)
        gc.collect()
        gc.freeze()
        if collects:
            gc.enable()
        facts = {"ready": True, "imported": imported, "skipped": skipped, "threads": _threads(), "cuda": _holds_gpu(), "rss": _resident()}
        taken = _fork(control) if _copies_well(before) else -1
        _tell(control, json, dict(facts, pid=os.getpid()))
        order = _order(lines, json)
    except (EOFError, ConnectionError):
        os._exit(0)  # the agent has hung up
    except (KeyboardInterrupt, OSError, ValueError) as e:
        print("holdfast: standby: %s: %s" % (type(e).__name__, e), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    if taken >= 0:
        os.write(taken, b"1")
        os.close(taken)
        _differ()
    if batch:
        _schedule(os.SCHED_OTHER)
    _become(order)
    _await_store(socket)
    _rename(name)
    lines.close()
    control.close()
    sys.modules.pop("holdfast_standby", None)


def _fork(control):
    """Returns in one copy after the other: the descriptor by which the copy says that it has become the rank.

    The process that was called stays as their source until the agent hangs up. Returns -1 in it where it cannot fork.
    """
    import time

    while True:
        told, taken = os.pipe()
        try:
            middle = os.fork()
        except OSError:
            os.close(told)
            os.close(taken)
            return -1
        if middle == 0:
            try:
                copy = os.fork()
            except OSError:
                os._exit(1)
            if copy:  # it is to be an orphan, whose end the container's first process sees, as after the agent's death
                _see_off(copy)
                os._exit(0)
            os.close(told)
            if _knows_it_is_a_fork():
                os.write(taken, b"0")
                os._exit(0)
            os.setsid()
            return taken
        os.close(taken)
        os.waitpid(middle, 0)
        became = os.read(told, 1)
        os.close(told)
        if became == b"0":
            return -1
        if not became and _hung_up(control):
            raise EOFError
        time.sleep(_REST)


def _see_off(copy):
    """Returns when a copy has left its source's group, which the agent stops and continues: a stop that it took along is taken back."""
    import signal
    import time

    while os.getsid(copy) != copy and os.waitpid(copy, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    try:
        os.kill(copy, signal.SIGCONT)
    except ProcessLookupError:
        pass


def _knows_it_is_a_fork():
    """Whether PyTorch would refuse a device here, because the process that this one was forked from has asked for devices."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        bad = getattr(getattr(torch, name, None), "_is_in_bad_fork", None)
        if bad is not None and bad():
            return True
    return False


def _hung_up(control):
    import socket

    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _order(lines, json):
    """Waits for the line that makes this process the rank; one for a copy that died before it could read it is passed over."""
    while True:
        order = _next(lines, json)
        if order.get("pid", os.getpid()) == os.getpid():
            return order


def _copies_well(before):
    """Whether a fork is all that this process is: no thread that would be missing, nothing open that two would read."""
    try:
        if len(os.listdir("/proc/self/task")) != 1:
            return False
    except OSError:
        return False
    return all(target.startswith("/") for fd, target in _open_files().items() if before.get(fd) != target)


def _open_files():
    files = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            files[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
    return files


def _differ():
    """Gives a copy random numbers of its own where a new process would have them; `random` sees to it by itself."""
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()


def warm(names):
    """Imports what can be imported; returns how many were and how many were not."""
    import importlib

    main = sys.modules["__main__"]
    if sys.argv and os.path.isfile(sys.argv[0]):
        main.__file__ = os.path.abspath(sys.argv[0])  # some modules ask at import whether there is a script
    imported = skipped = 0
    for name in names:
        if name in sys.modules:
            imported += 1
            continue
        if _refused(name) or not _there(name):
            skipped += 1
            continue
        try:
            importlib.import_module(name)
            imported += 1
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever it is, the script will meet it again and deal with it
            skipped += 1
    main.__dict__.pop("__file__", None)
    return imported, skipped


def _batch():
    """Has the kernel treat this process as one that never needs to run at once; whether it does so now."""
    try:
        return os.sched_getscheduler(0) == os.SCHED_OTHER and _schedule(os.SCHED_BATCH)
    except (AttributeError, OSError):
        return False


def _schedule(policy):
    """Sets the policy of all threads: what was imported may have started some, which took over the one before."""
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        return True
    except OSError:
        return False


def _refused(name):
    return any(name == never or name.startswith(never + ".") for never in _NEVER)


def _there(name):
    """False for a child of something that is no package here: importing it would only make noise."""
    parent, _, child = name.rpartition(".")
    return not child or not parent or parent not in sys.modules or hasattr(sys.modules[parent], "__path__")


def _next(lines, json):
    line = lines.readline()
    if not line.endswith("\n"):
        raise EOFError
    return json.loads(line)


def _tell(control, json, message):
    control.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _become(order):
    """Takes on what is new: environment and working directory."""
    for key in order.get("unset", []):
        os.environ.pop(key, None)
    os.environ.update(order.get("env", {}))
    if order.get("cwd"):
        os.chdir(order["cwd"])


def _await_store(socket):
    """Waits a moment for rank 0 to serve the group's store.

    PyTorch's client that asks too early waits for up to a second before it asks again, although ranks that were all
    warm come within milliseconds of one another. Where nobody serves, the script finds out by itself.
    """
    import time

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if "torch.distributed" not in sys.modules or os.environ.get("RANK", "0") == "0" or not address or not port.isdigit():
        return
    end = time.monotonic() + _STORE_LIMIT
    while time.monotonic() < end:
        try:
            socket.create_connection((address, int(port)), timeout=_STORE_LIMIT).close()
            return
        except OSError:
            time.sleep(0.003)


def _rename(name):
    """Shows in `ps` which processes are standbys; returns the name before."""
    try:
        with open("/proc/self/comm", "r+") as f:
            old = f.read().strip()
            f.seek(0)
            f.write(name)
            return old
    except OSError:
        return name


def _threads():
    threading = sys.modules.get("threading")
    return threading.active_count() - 1 if threading else 0


def _holds_gpu():
    """Whether a GPU context was opened here, which would keep memory of the device."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return True
    try:
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + fd).startswith("/dev/nvidia"):
                    return True
            except OSError:
                continue
    except OSError:
        pass
    return False


def _resident():
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
