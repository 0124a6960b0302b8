"""The site hook: code of Holdfast that runs in each Python process of a training container, before the first line of the
script.

- A process of `python -m torch.distributed.run`, or of a `torchrun` that was not found by PATH, becomes Holdfast's shim. For
  other launchers in Python _holdfast_launcher replaces torch's launch_agent.
- A standby waits here until the agent orders it to become a rank (holdfast_standby).
- A rank writes an uncaught exception to the file HOLDFAST_ERROR_FILE, and its imports and optimizer steps to the file
  HOLDFAST_PAGE. When
  a rank joins a process group, _holdfast_watch prepares it so that the agent can look at its state, by files at HOLDFAST_LOOKS.

In every other process the hook takes less than 5 ms, because it imports only modules that an interpreter imports at its start.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.launch")
_RUNNER_MODULES = ("deepspeed.launcher.runner", "deepspeed")


def run():
    if "HOLDFAST_STANDBY_FD" in os.environ:
        import holdfast_standby

        holdfast_standby.hold()
    elif "HOLDFAST_LOCAL_RANK" not in os.environ:
        become_shim()
        watch_launchers()
    if "HOLDFAST_ERROR_FILE" in os.environ:  # a rank, or the pod's whole command
        enter_rank()


# The launcher becomes the shim.


def become_shim():
    line = command_line()
    script, module = what_runs(line)
    runner = module in _RUNNER_MODULES or os.path.basename(script) == "deepspeed"
    if not os.environ.get("HOLDFAST_CONTAINER") or not (runner or is_launcher(line)):
        return
    if runner and os.environ.pop("HOLDFAST_RUNNER_READ", None):
        return  # the launcher goes on; launch_agent intercepts it when it starts the ranks
    program = agent()
    if program is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if runner:
        os.environ["HOLDFAST_RUNNER_PYTHON"] = sys.executable
    if runner and script:
        line = line[line.index(script) :]  # deepspeed's own program; the flags in its first line belong to the installation
    else:
        line = [sys.executable] + line[1:]
    os.execv(program, [program, "launch", "--"] + line)


def agent():
    """The agent's program; None if there is none, so that nothing can be passed to it."""
    path = os.path.join(os.environ.get("HOLDFAST_ROOT") or os.path.dirname(_HERE), "bin", "holdfast-agent")
    return path if os.access(path, os.X_OK) else None


def watch_launchers():
    """Makes another Python launcher pass what it would start to the agent, once it has imported
    torch.distributed.launcher.api."""
    if not os.environ.get("HOLDFAST_CONTAINER"):
        return
    import _holdfast_imports

    _holdfast_imports.install({"torch.distributed.launcher.api": _wrap})


def _wrap(module):
    import _holdfast_launcher

    _holdfast_launcher.wrap(module)


def command_line():
    """The interpreter's own command line, as given."""
    line = getattr(sys, "orig_argv", None)
    if line is not None:
        return list(line)
    try:
        with open("/proc/self/cmdline", "rb") as f:
            return [os.fsdecode(a) for a in f.read().split(b"\0")[:-1]]
    except OSError:
        return []


def is_launcher(line):
    """Whether an interpreter's command line runs a launcher. The agent interprets the launcher's flags."""
    script, module = what_runs(line)
    return module in _LAUNCHER_MODULES or os.path.basename(script) == "torchrun"


def what_runs(line):
    """The script and the module that an interpreter's command line runs; "" for the one that it does not run."""
    i = 1
    while i < len(line):
        word = line[i]
        if word.startswith("--") and word != "--":
            i += 2 if word == "--check-hash-based-pycs" else 1
        elif not word.startswith("-") or word in ("-", "--"):
            return word, ""
        else:
            module, i = _short_options(line, i)
            if module is not None:
                return "", module
    return "", ""


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
    """Called once, in the first Python process of a rank; its children do not inherit the variable."""
    take_output()
    keep_traceback(os.environ.pop("HOLDFAST_ERROR_FILE"))
    path, looks = os.environ.pop("HOLDFAST_PAGE", ""), os.environ.pop("HOLDFAST_LOOKS", "")
    if path:
        watch(path, looks)


def watch(path, looks):
    """Reports on the rank's page which modules the script imports and how many optimizer steps it has finished. Prepares the
    process for the agent's looks once it uses torch.distributed."""
    import _holdfast_imports
    import _holdfast_page
    import _holdfast_steps

    page = _holdfast_page.enter(path)
    if page is None:
        return
    counter = _holdfast_steps.Counter(page, first=os.environ.get("HOLDFAST_GENERATION") == "1")
    for name in _holdfast_imports.names():  # a standby has imported most of them
        page.name(name)
    actions = {"torch.optim.optimizer": counter.watch_optimizers, "deepspeed.runtime.engine": counter.watch_engines}
    if looks:
        actions["torch.distributed.distributed_c10d"] = lambda module: watch_groups(module, page, looks)
    _holdfast_imports.install(actions, note=page.name)


def watch_groups(module, page, looks):
    import _holdfast_watch

    _holdfast_watch.Watch(page, looks).watch_groups(module)


def keep_traceback(error_file):
    """Also writes an uncaught exception to a file."""
    previous = sys.excepthook

    def excepthook(kind, value, trace):
        try:
            write_error(error_file, kind, value, trace)
        finally:
            (previous if previous is not excepthook else sys.__excepthook__)(kind, value, trace)

    if error_file:
        sys.excepthook = excepthook


def take_output():
    """Redirects a standby that became the rank to the output that the launcher chose; a rank started cold has it from the
    start."""
    for name, stream, number in (("HOLDFAST_STDOUT", sys.stdout, 1), ("HOLDFAST_STDERR", sys.stderr, 2)):
        path = os.environ.pop(name, None)
        if not path:
            continue
        if stream is not None:
            stream.flush()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(fd, number)  # inheritable, as descriptors 0 to 2 are
            os.close(fd)
        except OSError as e:
            print("holdfast: opening the rank's output: %s" % e, file=sys.stderr)


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
        pass  # the script's own output still has it
