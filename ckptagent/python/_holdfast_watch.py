"""Lets the agent look at a rank that stands still: its collectives, its groups and its main thread's Python stack.

All is prepared when the script enters torch.distributed's init_process_group, and costs nothing until the agent looks:

- PREFIX.sock: torch's worker server, C++ threads that answer without the interpreter's lock. They have torch's record of
  collectives (its flight recorder).
- PREFIX.groups: a line for each process group, with names and members, which the record lacks.
- PREFIX.stack: faulthandler writes the main thread's stack there when the process gets the signal whose number is on the page.

What fails here is left out; the script is told nothing.
"""

import os
import sys
import time

# Descriptors from this number on are not reused by a script that closes and opens its own.
_HIGH = 900

# Most groups that are noted; a rank is in some tens.
_MOST_GROUPS = 1024

# torch's level at which only errors are logged.
_ERRORS = 2


class Watch:
    """One per process. page takes armed(signal, start)."""

    def __init__(self, page, prefix):
        self.page, self.prefix = page, prefix
        self.begun = False
        self.groups = 0

    def watch_groups(self, module):
        """For torch.distributed.distributed_c10d, once it was executed."""
        from functools import wraps

        init = module.init_process_group

        @wraps(init)
        def init_process_group(*args, **kwargs):
            self.prepare()
            return init(*args, **kwargs)

        _replace("init_process_group", init, init_process_group)
        if type(getattr(module, "_pg_group_ranks", None)) is dict:
            _replace("_pg_group_ranks", module._pg_group_ranks, _noting(module, self))

    def prepare(self):
        if self.begun or not self.page.mine():
            return
        self.begun = True
        for path in (".groups", ".sock", ".stack"):  # of an earlier process
            _quietly(os.unlink, self.prefix + path)
        _quietly(record)
        _quietly(serve, self.prefix + ".sock")
        signal = _quietly(arm, self.prefix + ".stack")
        if signal is not None:
            _quietly(lambda: self.page.armed(signal, start()))

    def note(self, name, backends, ranks):
        """Writes down a group: its name in torch's record, its backends, and its members in the group's order."""
        if not self.begun or self.groups >= _MOST_GROUPS or not self.page.mine():
            return
        self.groups += 1
        line = "\t".join((name.translate(_BREAKS), backends.translate(_BREAKS), spans(ranks))) + "\n"
        fd = os.open(self.prefix + ".groups", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode("utf-8", "replace"))
        finally:
            os.close(fd)


_BREAKS = {9: " ", 10: " "}


def _replace(name, old, new):
    """In all modules: those that a standby has imported may hold it as well."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and names.get(name) is old:
            names[name] = new


def _noting(module, watch):
    """torch's dict of the groups' members, which also notes each group that is added."""

    class Noting(dict):
        def __setitem__(self, group, ranks):
            dict.__setitem__(self, group, ranks)
            _quietly(note, group, ranks)

    def note(group, ranks):
        world = module._world
        if group in world.pg_names:  # else this rank is no member
            watch.note(str(world.pg_names[group]), str(world.pg_backend_config.get(group, "")), sorted(ranks, key=ranks.get))

    return Noting(module._pg_group_ranks)


def spans(ranks):
    """Ranks in their order, as FIRST, FIRST-LAST or FIRST-LAST/STEP with commas between."""
    out, i = [], 0
    while i < len(ranks):
        end = i + 1
        step = ranks[end] - ranks[i] if end < len(ranks) else 1
        while step > 0 and end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - i < 3:
            end = i + 1
            out.append(str(ranks[i]))
        else:
            out.append("%d-%d" % (ranks[i], ranks[end - 1]) + ("/%d" % step if step > 1 else ""))
        i = end
    return ",".join(out)


def record():
    """Has collectives recorded where this version of torch does not by itself."""
    import torch

    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    if not any(os.environ.get(name) for name in names) and tuple(int(n) for n in str(torch.__version__).split(".")[:2]) < (2, 6):
        os.environ[names[1]] = "2000"


def serve(path):
    """Starts torch's worker server (torch >= 2.5). It logs a line when it starts and others when it is destroyed, so it logs
    only errors meanwhile, and is never destroyed."""
    from torch._C._distributed_c10d import _WorkerServer  # before this rank takes its turn: other ranks wait for that

    threads = max(8, os.cpu_count() or 0) + 2
    turn = _turn(os.path.dirname(path))
    try:
        if turn is not None and _room(threads) and _startable(2 * threads):
            _start_server(_WorkerServer, path, threads)
    finally:
        if turn is not None:
            os.close(turn)


def _start_server(server_type, path, threads):
    import ctypes

    import torch

    before_threads = _threads()
    level = ctypes.c_int.in_dll(ctypes.CDLL(torch._C.__file__), "FLAGS_caffe2_log_level")
    before = level.value
    level.value = max(before, _ERRORS)
    try:
        server = server_type(path)
    finally:
        level.value = before
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    os.chmod(path, 0o600)
    for _ in range(100):  # the server's thread starts the others
        if _threads() >= before_threads + threads - 2:
            return
        time.sleep(0.002)


def _threads():
    return len(os.listdir("/proc/self/task"))


def _turn(folder):
    """The descriptor of a lock: ranks of a pod start their threads one after another, so that each sees what is left. None if
    the other ranks take longer than two seconds."""
    import fcntl

    fd = os.open(os.path.join(folder, "looks.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(200):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            time.sleep(0.01)
    os.close(fd)
    return None


def _startable(threads):
    """Whether so many threads can be started now: a limit of the pod, or of the user, cannot be read in the container."""
    import _thread

    size = _thread.stack_size(64 << 10)
    gate, ended = _thread.allocate_lock(), []
    gate.acquire()

    def wait():
        with gate:
            ended.append(None)

    started = 0
    try:
        while started < threads:
            _thread.start_new_thread(wait, ())
            started += 1
    except RuntimeError:
        pass
    finally:
        _thread.stack_size(size)
        gate.release()
    while len(ended) < started:
        time.sleep(0.001)
    return started == threads


def _room(threads):
    """Whether the container may have so many threads more, twice: torch ends the process if one cannot be started."""
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/pids"):
        try:
            most, now = (_read(folder + name) for name in ("/pids.max", "/pids.current"))
        except OSError:
            continue
        if most.strip().isdigit() and int(most) - int(now) < 2 * threads:
            return False
    return True


def arm(path):
    """Makes a signal write this thread's stack to a file, and returns its number; None where there is no free one."""
    import faulthandler
    import fcntl
    import signal

    taken = 0
    for line in _read("/proc/self/status").splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigBlk", "SigIgn", "SigCgt"):
            taken |= int(mask, 16)
    free = [n for n in range(signal.SIGRTMAX - 1, signal.SIGRTMIN + 7, -1) if not taken >> (n - 1) & 1]
    if not free:
        return None
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        own = _duplicate(fcntl, fd)
    finally:
        os.close(fd)
    # faulthandler puts back what it finds when the interpreter ends: from then on the process ignores the signal, which would end it.
    _quietly(signal.signal, free[0], signal.SIG_IGN)
    faulthandler.register(free[0], file=own, all_threads=False, chain=False)
    return free[0]


def _duplicate(fcntl, fd):
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the process may not have so many
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)


def start():
    """When this process started, in ticks after boot: with its number it identifies the process."""
    return int(_read("/proc/self/stat").rpartition(")")[2].split()[19])


def _read(path):
    with open(path) as f:
        return f.read()


def _quietly(do, *args):
    try:
        return do(*args)
    except Exception:  # what cannot be prepared is left out: the script must not notice
        return None
