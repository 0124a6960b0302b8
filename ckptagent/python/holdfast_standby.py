"""Holds a standby before the first line of its script, with the modules that the script will need already imported.

The agent starts a process, the source, with the command line of the rank. The source imports the modules, then forks a
standby for each rank, and another one shortly after a standby has become its rank. So the imports run once. In a standby
hold() returns when the agent orders it to become the rank, and Python then runs the script as usual. One source serves all
ranks of a pod if none of its imports reads a variable of a single rank. If the imports started threads or opened sockets, a
fork would not be a faithful copy. In that case each rank has a source of its own, and the source itself becomes the rank.
A node check has a source too: its forks become the processes of trials (holdfast_check). docs/architecture.md defines the
messages on the sockets.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time

import _holdfast_copies

# Modules with side effects at import: they open devices, start threads or join a group.
_NEVER = (
    "mpi4py.MPI", "pycuda.autoinit", "cupy", "horovod", "tensorflow", "jax", "jaxlib", "torch_xla", "IPython", "antigravity",
    "this", "idlelib", "turtle", "tkinter",
)  # fmt: skip

# Modules that copy all variables at import, use those with their own prefix, and drop the copy.
_SCANS = ("fsspec.config",)

# How long, in seconds, a rank waits at most for rank 0's store before its script goes on.
_STORE_LIMIT = 0.5

# The variable by whose value, the mark, the agent finds what it must end.
_MARK = "HOLDFAST_MARK"

# How long, in seconds, a source waits before it forks again, so that ranks that have just started get the processors.
_REST = 0.3


def hold():
    """Returns when this process is to become the rank; exits when it is no longer needed."""
    control = _socket(os.environ.pop("HOLDFAST_STANDBY_FD"))
    lines = [_socket(fd) for fd in os.environ.pop("HOLDFAST_STANDBY_FDS").split(",")]
    name = _rename("hf-standby")
    batch = _batch()
    try:
        source = _Source(control, lines)
        line = source.serve()
        _send(line, {"ready": True, "pid": os.getpid(), "learned": source.learned})
        order, output = _order(line)
        _become(order, output)
    except (EOFError, ConnectionError):
        os._exit(0)  # the agent has closed its end
    except BaseException as e:  # otherwise the script would run as a rank without an order
        print("holdfast: standby: %s: %s" % (type(e).__name__, e), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    source.leave()
    if batch:
        _schedule(os.SCHED_OTHER)
    if "args" not in order:
        _await_store()
    _rename(name)
    sys.modules.pop("holdfast_standby", None)
    sys.modules.pop("_holdfast_copies", None)


def _socket(fd):
    os.set_inheritable(int(fd), False)
    return socket.socket(fileno=int(fd))


class _Source:
    """Imports, and forks one standby for each line (socket of a rank), on which the standby waits for its order."""

    def __init__(self, control, lines):
        self._control, self._lines, self._messages = control, lines, _Messages(control)
        self._before, self._mapped, self._draws = _open_files(), _holdfast_copies.shared_mappings(), []
        self._copies = {}  # read end of a copy's pipe -> the line that the copy waits on
        self._due = {}  # when to fork the next copy for a line
        self._alone = ""  # why it cannot be copied
        self.learned = 0  # how often it received modules
        self._missed = False  # an import has read a variable that is missing here and will be set for the rank
        self._taken = -1  # in a copy: the write end of that pipe

    def serve(self):
        """Returns the line to wait on: in each copy in turn, and in the process itself if it cannot be copied."""
        self._learn(self._messages.next())
        while True:
            for line, at in sorted(self._due.items()):
                if at <= time.monotonic() and not self._alone:
                    del self._due[line]
                    if self._fork(line):
                        return self._lines[line]
            if self._alone and len(self._lines) == 1 and self.learned == 1 and not self._missed:
                return self._lines[0]  # otherwise older copies wait there, or it misses variables: the agent starts another source
            self._await()

    def leave(self):
        """Closes, in a process that has become a rank, everything of the source."""
        for s in [self._control, *self._lines]:
            s.close()
        if self._taken >= 0:
            os.write(self._taken, b"1")
            os.close(self._taken)
            for draws in self._draws:
                draws.renew()

    def _await(self):
        """Handles messages of the agent and results of copies, until a copy is due."""
        poll = select.poll()
        for fd in [self._control.fileno(), *self._copies]:
            poll.register(fd, select.POLLIN)
        due = min(self._due.values(), default=float("inf"))
        wait = None if self._alone or due == float("inf") else max(0, due - time.monotonic()) * 1000 + 1
        if self._messages.more():
            wait = 0
        ready = [fd for fd, _ in poll.poll(wait)]
        for fd in ready:
            if fd in self._copies:
                self._over(fd)
        if self._control.fileno() in ready or self._messages.more():  # last, as it may refer to copies that have ended
            self._obey(self._messages.next())

    def _obey(self, message):
        if "modules" in message:
            self._learn(message)
        for line in message.get("fork") or ():
            if line in self._due:
                self._due[line] = 0

    def _over(self, fd):
        """Handles the end of a copy's pipe: it became its rank, died, or reported that no copy can work."""
        line, said = self._copies.pop(fd), os.read(fd, 1)
        os.close(fd)
        self._due[line] = time.monotonic() + _REST
        if said == b"0":
            self._alone = self._alone or "PyTorch refuses devices in a fork of a process that has queried devices"
            if len(self._lines) > 1:
                _send(self._control, {"warm": True, "alone": self._alone})

    def _learn(self, message):
        """Imports and reports the result; waiting copies keep what they have."""
        collects = gc.isenabled()
        gc.disable()  # objects of imports stay: collecting garbage among them takes a fifth of the time
        skip = message.get("skip") or ()
        with _holdfast_copies.Draws() as draws, _holdfast_copies.Guard(skip, self._met):
            with _Reads(message.get("own") or (), message.get("later") or ()) as reads:
                imported, skipped = warm(message["modules"], lambda name, half: self._goes_on(name, half, reads), skip)
        self._draws.append(draws)
        self.learned += 1
        if draws.kept:
            self._alone = self._alone or draws.kept[0]
        if message.get("marks") and not (_mark(os.environ[_MARK][:-1]) and _mark(os.environ[_MARK])):
            self._alone = self._alone or "its variable %s cannot be overwritten" % _MARK
        gc.collect()
        gc.freeze()
        if collects:
            gc.enable()
        facts = {"warm": True, "alone": self._alone, "imported": imported, "skipped": skipped}
        _send(self._control, dict(facts, threads=_threads(), cuda=_holds_gpu(), memory=_own_memory()))
        for line in range(len(self._lines)):  # not before the agent asks for it: it may be about to stop this process
            if line not in self._copies.values():
                self._due[line] = float("inf")

    def _goes_on(self, name, done, reads):
        """Whether to import more: a source that misses a variable of a single rank cannot become a rank."""
        if reads.later:
            self._leave_out(reads.modules, "module %s, which the script imports, reads %s" % (reads.modules[-1], ", ".join(sorted(reads.later))))
        if _holds_gpu():
            self._leave_out([name], "module %s, which the script imports, opens a GPU" % name)
        if reads.names and not self._missed:
            by = reads.modules[-1] if reads.modules else name
            self._missed, self._alone = True, "module %s, which the script imports, reads %s" % (by, ", ".join(sorted(reads.names)))
        if not self._alone and not _copies_well(self._before, self._copies):
            self._alone = "module %s, which the script imports, starts a thread or opens a socket" % name
        if not self._alone and _holdfast_copies.shared_mappings() - self._mapped:
            self._alone = "module %s, which the script imports, makes shared memory or a semaphore" % name
        if done:
            _send(self._control, {"half": True})
        return not self._missed

    def _met(self, name):
        by = _holdfast_copies.importing()
        if by:
            self._leave_out(by, "module %s, which the script imports, imports %s, which is left out" % (by[-1], name))

    def _leave_out(self, modules, why):
        """Reports these modules and exits: no standby may import them, and the agent starts a source without them."""
        _send(self._control, {"warm": True, "without": modules, "why": why})
        while self._control.recv(1 << 16):
            pass
        os._exit(0)

    def _fork(self, line):
        """Forks the standby that waits on a line; returns True in the standby."""
        outcome, taken = os.pipe()
        try:
            middle = os.fork()
        except OSError:
            os.close(outcome)
            os.close(taken)
            self._due[line] = time.monotonic() + _REST
            return False
        if middle == 0:
            try:
                copy = os.fork()
            except OSError:
                os._exit(1)
            if copy:  # it must be an orphan, so that the container's first process reaps it, as after the agent's death
                _see_off(copy)
                os._exit(0)
            if _knows_it_is_a_fork():
                os.write(taken, b"0")
                os._exit(0)
            os.setsid()
            self._part(line, outcome, taken)
            return True
        os.close(taken)
        os.waitpid(middle, 0)
        self._copies[outcome] = line
        return False

    def _part(self, line, outcome, taken):
        """Closes, in a copy, what belongs to the source and other copies."""
        self._taken = taken
        for fd in [outcome, *self._copies]:
            os.close(fd)
        for s in [self._control, *(other for other in self._lines if other is not self._lines[line])]:
            s.close()


class _Messages:
    """One JSON object per line from a socket, and the descriptors that came with them."""

    def __init__(self, sock):
        self._socket, self._bytes, self.files = sock, b"", []

    def more(self):
        return b"\n" in self._bytes

    def next(self):
        while not self.more():
            got, others, _, _ = self._socket.recvmsg(1 << 16, socket.CMSG_SPACE(4))
            for _, _, files in others:
                self.files += memoryview(files).cast("i").tolist()
            if not got:
                raise EOFError
            self._bytes += got
        line, _, self._bytes = self._bytes.partition(b"\n")
        return json.loads(line)


class _Reads:
    """Records, while a source imports, which variables of a single rank are read: by name, or by a copy of all.

    dict(os.environ), os.environ.copy() and {**os.environ} read all names. A loop over items() does not count: code uses it to
    find settings by prefix, as _SCANS do. Reads by the C library (getenv), of /proc/self/environ, and by processes that an import
    starts are not detected.
    """

    def __init__(self, own, later):
        self.names, self.later, self.modules = set(), set(), []  # modules: those that were being imported at the first of these reads
        self._own, self._later = ({form for name in names for form in (name, os.fsencode(name))} for names in (own, later))

    def __enter__(self):
        self._kinds = [(environ, environ.__class__) for environ in (os.environ, getattr(os, "environb", None)) if environ is not None]
        if self._own or self._later:
            for environ, kind in self._kinds:
                environ.__class__ = self._noting(kind)
        return self

    def __exit__(self, *_):
        for environ, kind in self._kinds:
            environ.__class__ = kind

    def _read(self, name, to):
        to.add(os.fsdecode(name))
        self.modules = self.modules or _holdfast_copies.importing()

    def _noting(self, kind):
        reads = self

        class Names(type(kind.keys(os.environ))):
            def __iter__(self):
                if reads._own and _holdfast_copies.importing()[-1:] not in ([name] for name in _SCANS):
                    reads._read("all variables", reads.names)
                return super().__iter__()

        class Noting(kind):
            def __getitem__(self, key):
                if key in reads._own:
                    reads._read(key, reads.names)
                if key in reads._later:
                    reads._read(key, reads.later)
                return kind.__getitem__(self, key)

            def keys(self):
                return Names(self)

        return Noting


def _see_off(copy):
    """Returns once a copy has left its source's process group, which the agent stops and continues. Continues a copy that was
    stopped with the group."""
    while os.getsid(copy) != copy and os.waitpid(copy, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    try:
        os.kill(copy, signal.SIGCONT)
    except ProcessLookupError:
        pass


def _knows_it_is_a_fork():
    """Whether PyTorch would refuse a device here, because the process that this one was forked from has queried devices."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        bad = getattr(getattr(torch, name, None), "_is_in_bad_fork", None)
        if bad is not None and bad():
            return True
    return False


def _order(line):
    """Waits for the order that makes this process the rank; skips one for a copy that died before it read the order."""
    messages = _Messages(line)
    while True:
        order = messages.next()
        if order.get("pid", os.getpid()) == os.getpid():
            return order, messages.files
        while messages.files:
            os.close(messages.files.pop())


def _copies_well(before, own):
    """Whether a fork copies this process completely: no other threads, and no open file shared with another process except its
    own pipes."""
    try:
        if len(os.listdir("/proc/self/task")) != 1:
            return False
    except OSError:
        return False
    return all(target.startswith("/") for fd, target in _open_files().items() if before.get(fd) != target and int(fd) not in own)


def _open_files():
    files = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            files[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
    return files


def warm(names, goes_on=lambda name, half: True, skip=()):
    """Imports the modules that can be imported; returns how many were imported and how many skipped.

    After each import it calls goes_on, which decides whether to go on; once its argument reports that half of the names are done.
    Modules in skip are not imported.
    """
    import importlib

    main = sys.modules["__main__"]
    if sys.argv and os.path.isfile(sys.argv[0]):
        main.__file__ = os.path.abspath(sys.argv[0])  # some modules check at import whether there is a script
    imported = skipped = 0
    half = len(names) // 2
    for name in names:
        if name in sys.modules:
            imported += 1
            continue
        if _refused(name) or _holdfast_copies.within(name, skip) or not _there(name):
            skipped += 1
            continue
        try:
            importlib.import_module(name)
            imported += 1
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever it is, the script meets the same error and handles it
            skipped += 1
        passed = 0 <= half < imported + skipped
        half = -1 if passed else half
        if not goes_on(name, passed):
            break
    main.__dict__.pop("__file__", None)
    return imported, skipped


def _batch():
    """Makes this process a batch process for the kernel's scheduler; returns whether it is one now."""
    try:
        return os.sched_getscheduler(0) == os.SCHED_OTHER and _schedule(os.SCHED_BATCH)
    except (AttributeError, OSError):
        return False


def _schedule(policy):
    """Sets the policy of all threads: imports may have started threads, which inherited the previous policy."""
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        return True
    except OSError:
        return False


def _refused(name):
    return _holdfast_copies.within(name, _NEVER)


def _there(name):
    """False for a child of a module that is not a package here: importing it would only print warnings."""
    parent, _, child = name.rpartition(".")
    return not child or not parent or parent not in sys.modules or hasattr(sys.modules[parent], "__path__")


def _send(sock, message):
    sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _become(order, output):
    """Applies the order: environment, working directory and, for the process of a trial, mark, arguments and output."""
    for key in order.get("unset", []):
        os.environ.pop(key, None)
    env = order.get("env", {})
    if _MARK in env and not _mark(env[_MARK]):
        raise RuntimeError("its variable %s cannot be overwritten" % _MARK)
    os.environ.update(env)
    if order.get("cwd"):
        os.chdir(order["cwd"])
    if "args" in order:
        sys.argv[1:] = order["args"]
    for fd in output:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _mark(mark):
    """Writes another mark over the one that this process was started with, because others read it in /proc; returns whether they see it."""
    import ctypes  # only here: ranks do not need it

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    at, room, mark = getenv(_MARK.encode()), len(os.environ[_MARK].encode()), mark.encode()
    if at is not None and len(mark) <= room:
        ctypes.memmove(at, mark + bytes(room - len(mark)), room)
    with open("/proc/self/environ", "rb") as f:
        return _MARK.encode() + b"=" + mark in f.read().split(b"\0")


def _await_store():
    """Waits briefly for rank 0 to serve the group's store.

    PyTorch's client, if it connects too early, waits up to a second before it retries, although warm ranks start within
    milliseconds of one another. If no store listens, the script finds out itself.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if "torch.distributed" not in sys.modules or os.environ.get("RANK", "0") == "0" or not address or not port.isdigit():
        return
    end = time.monotonic() + _STORE_LIMIT
    while time.monotonic() < end:
        try:
            # As bytes: for text Python would import a codec, which a rank started cold does not have.
            socket.create_connection((address.encode(), int(port)), timeout=_STORE_LIMIT).close()
            return
        except OSError:
            time.sleep(0.003)


def _rename(name):
    """Shows in `ps` which processes are standbys; returns the previous name."""
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
    """Whether a GPU context was opened here, which would hold device memory."""
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


def _own_memory():
    """Resident memory that is not shared with other processes through files."""
    try:
        with open("/proc/self/statm") as f:
            resident, shared = f.read().split()[1:3]
            return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
