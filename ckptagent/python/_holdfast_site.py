"""The site hook: what Holdfast does in Python processes that it or the user started, before their first line.

- A launcher (`python -m torch.distributed.run`, or a `torchrun` that was found past our PATH) becomes our shim.
- A standby is held until it is needed (holdfast_standby).
- A rank's uncaught exception is also written to HOLDFAST_ERROR_FILE, and its modules are told to the agent.

Every other process passes through in well under 5 ms: no import that a bare interpreter has not done already.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_watch = None


def run():
    if "HOLDFAST_STANDBY_FD" in os.environ:
        import holdfast_standby

        holdfast_standby.hold()
    elif "HOLDFAST_LOCAL_RANK" not in os.environ:
        become_shim()
        return
    if "HOLDFAST_ERROR_FILE" in os.environ:
        enter_rank()


# The launcher becomes the shim.


def become_shim():
    line = command_line()
    if not is_launcher(line) or not os.environ.get("HOLDFAST_CONTAINER"):
        return
    agent = os.path.join(os.environ.get("HOLDFAST_ROOT") or os.path.dirname(_HERE), "bin", "holdfast-agent")
    if not os.access(agent, os.X_OK):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(agent, [agent, "launch", "--", sys.executable] + line[1:])


def command_line():
    """The interpreter's own command line, as it was given."""
    line = getattr(sys, "orig_argv", None)
    if line is not None:
        return list(line)
    try:
        with open("/proc/self/cmdline", "rb") as f:
            return [os.fsdecode(a) for a in f.read().split(b"\0")[:-1]]
    except OSError:
        return []


def is_launcher(line):
    """Whether an interpreter's command line runs a launcher. What its flags mean is the agent's to say."""
    i = 1
    while i < len(line):
        word = line[i]
        if word.startswith("--") and word != "--":
            i += 2 if word == "--check-hash-based-pycs" else 1
        elif not word.startswith("-") or word in ("-", "--"):
            break
        else:
            module, i = _short_options(line, i)
            if module is not None:
                return module in _LAUNCHER_MODULES
    return i < len(line) and os.path.basename(line[i]) == "torchrun"


def _short_options(line, i):
    """Reads one word of single-letter options: the module of -m, "" for -c, else None, and the index after it."""
    word = line[i]
    for at, letter in enumerate(word[1:], 1):
        if letter in "cm":
            value, i = (word[at + 1 :], i) if word[at + 1 :] else (line[i + 1] if i + 1 < len(line) else "", i + 1)
            return (value if letter == "m" else ""), i + 1
        if letter in "WX":
            return None, i + (1 if word[at + 1 :] else 2)
    return None, i + 1


# In a rank.


def enter_rank():
    """Called once, in the first Python process of a rank; those that it starts do not inherit the variable."""
    error_file = os.environ.pop("HOLDFAST_ERROR_FILE")
    previous = sys.excepthook

    def excepthook(kind, value, trace):
        try:
            write_error(error_file, kind, value, trace)
        finally:
            (previous if previous is not excepthook else sys.__excepthook__)(kind, value, trace)

    if error_file:
        sys.excepthook = excepthook
    if os.environ.get("HOLDFAST_SOCKET"):
        global _watch
        _watch = ModuleWatch()
        _watch.start()


def write_error(path, kind, value, trace):
    """Writes the traceback whole or not at all."""
    import traceback

    text = "".join(traceback.format_exception(kind, value, trace))
    part = "%s.%d" % (path, os.getpid())
    try:
        with open(part, "w", encoding="utf-8", errors="replace") as f:
            f.write(text)
        os.replace(part, path)
    except OSError:
        pass  # the script's own output still says it


def client_reports():
    """The client tells the modules itself."""
    if _watch is not None:
        _watch.stop()


class ModuleWatch:
    """Tells the agent once which modules a script has imported, for scripts that do not use the client.

    A thread or a signal would be seen by the script, so this rides on the garbage collector's callbacks, which run
    in the script's own thread: a clock is read, and once in a while the modules are counted. When ten seconds have
    passed and five of them brought no new module, the names are sent and the callback goes away.
    """

    AFTER, QUIET = 10.0, 5.0

    def __init__(self, clock=None):
        import time

        self._clock = clock or time.monotonic
        self._pid = os.getpid()
        self._begin = self._changed = self._clock()
        self._next = self._begin + 1.0
        self._count = len(sys.modules)

    def start(self):
        import gc

        gc.callbacks.append(self._collected)

    def stop(self):
        import gc

        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase, info):
        now = self._clock()
        if now < self._next or phase != "stop":
            return
        self._next = now + 1.0
        if os.getpid() != self._pid:
            self.stop()
            return
        if len(sys.modules) != self._count:
            self._count, self._changed = len(sys.modules), now
        if now - self._begin >= self.AFTER and now - self._changed >= self.QUIET and self._send():
            self.stop()

    def _send(self):
        try:
            from holdfast import _modules

            return _modules.report(self._tell)
        except (OSError, ValueError, KeyError):
            return False

    def _tell(self, modules):
        import json
        import socket

        message = {
            "v": 1, "rank": int(os.environ.get("HOLDFAST_LOCAL_RANK", "0")), "pid": self._pid,
            "gen": int(os.environ.get("HOLDFAST_GENERATION", "0")), "ev": "modules", "modules": modules,
        }  # fmt: skip
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
            s.sendto(json.dumps(message, separators=(",", ":")).encode(), os.environ["HOLDFAST_SOCKET"])
        return True
