"""Tests standbys in real interpreters."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from .case import ROOT, ScriptCase, environment

FACTS = """
import json, os, signal, sys, threading, gc, pickle
import __main__

class Mine:
    pass

def facts():
    frame, depth = sys._getframe(), 0
    while frame:
        depth, frame = depth + 1, frame.f_back
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": str(sys.flags), "cwd": os.getcwd(),
        "main": sorted((k, repr(v) if k in ("__file__", "__name__", "__package__", "__cached__", "__doc__") else type(v).__name__)
                       for k, v in vars(__main__).items()),
        "spec": getattr(__main__.__spec__, "name", None), "builtins": type(__builtins__).__name__,
        "pickled": pickle.loads(pickle.dumps(Mine)) is Mine, "depth": depth, "threads": threading.active_count(),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)],
        "stdio": [f.isatty() for f in (sys.stdin, sys.stdout, sys.stderr)], "stdin": sys.stdin.read(),
        "stdio_modes": [f.write_through for f in (sys.stdout, sys.stderr)],
        "encodings": [f.encoding for f in (sys.stdin, sys.stdout)], "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "fds": sorted(os.readlink("/proc/self/fd/%d" % f).split(":")[0] for f in range(64) if os.path.exists("/proc/self/fd/%d" % f)),
        "env": {k: v for k, v in os.environ.items()}, "gc": gc.isenabled(), "policy": os.sched_getscheduler(0), "comm": open("/proc/self/comm").read(),
        "leftover": sorted(m for m in sys.modules if m == "holdfast_standby"), "pgid": os.getpgid(0) == os.getpid(),
        "executable": sys.executable, "prefix": sys.prefix, "int": sys.getrecursionlimit(),
        "argv0": open("/proc/self/cmdline").read(),
    }

if __name__ == "__main__":
    print(json.dumps(facts()))
    END
"""


def adopt_orphans():
    """Makes this process the reaper of copies, like the container's first process."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "becoming the reaper of orphans")


def exit_code(pid):
    """Waits for a process that may become a child of this one only during the wait."""
    end = time.monotonic() + 60
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class Ends:
    """The agent's ends of the sockets: the source's, and one for each rank. As a file object: the first rank's."""

    def __init__(self, ranks=1):
        pairs = [socket.socketpair() for _ in range(1 + ranks)]
        self.theirs = [theirs for _, theirs in pairs]
        self.sockets = [ours for ours, _ in pairs]  # open as long as their files
        self.control, *self.ranks = [self._file(ours) for ours, _ in pairs]
        self.readline, self.write, self.flush = self.ranks[0].readline, self.ranks[0].write, self.ranks[0].flush

    @staticmethod
    def _file(ours):
        lines = ours.makefile("rw")
        ours.close()  # closing the file closes the socket
        return lines

    @property
    def variables(self):
        control, *ranks = [str(s.fileno()) for s in self.theirs]
        return {"HOLDFAST_STANDBY_FD": control, "HOLDFAST_STANDBY_FDS": ",".join(ranks)}

    def send(self, **message):
        self.control.write(json.dumps(message) + "\n")
        self.control.flush()

    def received(self):
        """The source's report once it has imported."""
        while True:
            message = json.loads(self.control.readline())
            if message.get("warm"):
                return message

    def close(self):
        for end in [self.control, *self.ranks]:
            end.close()


class Standby(ScriptCase):
    """The same command line, started normally and held as a standby first."""

    @classmethod
    def setUpClass(cls):
        adopt_orphans()

    ENV = {"HOLDFAST_LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"}
    NEWS = {"RANK": "1", "MASTER_PORT": "12345", "HOLDFAST_GENERATION": "4"}

    def standby(self, *args, modules=("json", "xml.dom.minidom", "no_such_module_anywhere", "mpi4py.MPI"), ranks=1, own=(), **extra):
        lines = Ends(ranks)
        env = environment(**self.ENV, DROPPED="1", **lines.variables, **extra)
        for name in own:
            env.pop(name, None)
        child = subprocess.Popen(
            [sys.executable, "-u", *args], env=env, cwd=self.folder, pass_fds=[s.fileno() for s in lines.theirs], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        for s in lines.theirs:
            s.close()
        lines.send(modules=list(modules), own=list(own))
        lines.send(fork=list(range(ranks)))
        return child, lines

    def become(self, child, lines, **order):
        ready = json.loads(lines.readline())
        order.setdefault("env", self.NEWS)
        self.order(lines, pid=ready["pid"], unset=["DROPPED"], cwd=self.folder, **order)
        return ready, self.ended(child, lines, ready["pid"], "typed")

    def order(self, lines, **order):
        lines.write(json.dumps(order) + "\n")
        lines.flush()

    def ended(self, child, lines, pid, typed=None):
        """The exit of the rank, whether the process itself or a copy; its source ends when the agent closes its socket."""
        if pid == child.pid:
            out, err = child.communicate(typed, timeout=60)
            return subprocess.CompletedProcess(child.args, child.returncode, out, err)
        codes = []

        def reap():
            codes.append(exit_code(pid))
            lines.close()

        reaper = threading.Thread(target=reap)
        reaper.start()
        out, err = child.communicate(typed, timeout=60)
        reaper.join()
        self.assertEqual(child.returncode, 0, err)
        return subprocess.CompletedProcess(child.args, codes[0], out, err)

    def normal(self, *args, **extra):
        return subprocess.run(
            [sys.executable, "-u", *args], env=environment(**self.ENV, **self.NEWS, **extra), cwd=self.folder, capture_output=True, text=True,
            input="typed", start_new_session=True,
        )  # fmt: skip

    def assert_same(self, *args, **extra):
        normal = self.normal(*args, **extra)
        ready, held = self.become(*self.standby(*args, **extra))
        self.assertTrue(ready["ready"])
        self.assertEqual(held.returncode, normal.returncode)
        self.assertEqual(held.stderr, normal.stderr)
        if held.stdout.startswith("{"):
            got, want = json.loads(held.stdout), json.loads(normal.stdout)
            for fact in want:
                self.assertEqual(got[fact], want[fact], fact)
        else:
            self.assertEqual(held.stdout, normal.stdout)
        return normal

    def test_facts_of_a_script(self):
        script = self.file("sub/facts.py", FACTS.replace("END", "pass"))
        self.assertEqual(self.assert_same(script, "--flag", "x y").returncode, 0)

    def test_facts_of_a_relative_script(self):
        self.file("facts.py", FACTS.replace("END", "pass"))
        self.assertEqual(self.assert_same("facts.py").returncode, 0)

    def test_facts_of_a_module(self):
        self.file("pack/__init__.py", "")
        self.file("pack/facts.py", FACTS.replace("END", "pass"))
        path = str(ROOT) + os.pathsep + self.folder
        self.assertEqual(self.assert_same("-m", "pack.facts", "x", PYTHONPATH=path).returncode, 0)

    def test_tracebacks_and_exit_codes(self):
        for text in ("def f():\n    return 1 / 0\nf()\n", "raise SystemExit(7)", "raise SystemExit('words')", "import sys\nsys.exit()",
                     "syntax error here", "raise KeyboardInterrupt", "import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
                     "import no_such_module_anywhere"):  # fmt: skip
            with self.subTest(text):
                self.assert_same(self.file("s.py", text))

    def test_the_error_file_of_its_generation(self):
        path = os.path.join(self.folder, "error.txt")
        _, held = self.become(*self.standby(self.file("s.py", "1/0")), env=dict(self.NEWS, HOLDFAST_ERROR_FILE=path))
        with open(path) as f:
            self.assertEqual(f.read(), held.stderr)

    def test_multiprocessing_spawn(self):
        script = self.file("s.py", """
            import multiprocessing as mp, os
            def work(q):
                q.put((__name__, os.environ["RANK"]))
            if __name__ == "__main__":
                c = mp.get_context("spawn")
                q = c.Queue()
                p = c.Process(target=work, args=(q,))
                p.start()
                print(q.get())
                p.join()
        """)  # fmt: skip
        self.assertEqual(self.assert_same(script).stdout, "('__mp_main__', '1')\n")

    def test_what_it_says_when_ready(self):
        child, lines = self.standby(self.file("s.py", "pass"))
        facts = lines.received()
        ready, _ = self.become(child, lines)
        self.assertEqual(ready, {"ready": True, "pid": ready["pid"], "learned": 1})
        self.assertEqual([facts[k] for k in ("imported", "skipped", "threads", "cuda", "alone")], [2, 2, 0, False, ""])
        self.assertGreater(facts["memory"], 1 << 20)

    def test_the_script_does_not_run_before_its_time(self):
        child, lines = self.standby(self.file("s.py", "print('ran')"))
        ready = json.loads(lines.readline())
        given = os.sched_getscheduler(0)
        waits = os.SCHED_BATCH if given == os.SCHED_OTHER else given  # a process started with another policy keeps it
        for pid in (child.pid, ready["pid"]):
            with open("/proc/%d/comm" % pid) as f:
                self.assertEqual(f.read(), "hf-standby\n")
            self.assertEqual(os.sched_getscheduler(pid), waits)
        lines.close()
        child_out, child_err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, child_out, child_err), (0, "", ""))

    def store(self, rank, listens, limit=None):
        """Becomes a script that connects to the store once; the store listens, if at all, after the order.

        limit is the longest wait; tests choose it so that a busy machine cannot decide the result.
        """
        self.file("torch/__init__.py", "")
        self.file("torch/distributed/__init__.py", "" if limit is None else "import holdfast_standby\nholdfast_standby._STORE_LIMIT = %d\n" % limit)
        script = self.file("s.py", """
            import os, socket
            try:
                socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
                print("served")
            except ConnectionRefusedError:
                print("refused")
            """)
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            child, lines = self.standby(script, modules=("torch.distributed",), PYTHONPATH=str(ROOT) + os.pathsep + self.folder)
            news = {"RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
            self.assertEqual(lines.received()["skipped"], 0)
            ready = json.loads(lines.readline())
            self.order(lines, pid=ready["pid"], env=news)
            if listens:
                time.sleep(0.2)  # a script that did not wait has connected by now
                server.listen()
            return self.ended(child, lines, ready["pid"])

    def test_it_waits_for_rank_0_to_serve_the_store(self):
        done = self.store("1", True, limit=60)
        self.assertEqual((done.stdout, done.returncode), ("served\n", 0), done.stderr)

    def test_it_does_not_wait_for_ever_and_rank_0_not_at_all(self):
        self.assertEqual(self.store("1", False).stdout, "refused\n")
        self.assertEqual(self.store("0", False, limit=3600).stdout, "refused\n")

    def test_the_agents_death_ends_it_while_it_warms(self):
        child, lines = self.standby(self.file("s.py", "print('ran')"), modules=())
        lines.close()
        self.assertEqual(child.communicate(timeout=60)[0], "")

    def test_nonsense_ends_it(self):
        for nonsense in ("what", "null", '{"pid": 0}\n[]', '{"env": 1}'):
            with self.subTest(nonsense):
                child, lines = self.standby(self.file("s.py", "print('ran')"))
                ready = json.loads(lines.readline())
                lines.write(nonsense + "\n")
                lines.flush()
                done = self.ended(child, lines, ready["pid"])
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn("holdfast: standby:", done.stderr)

    def test_nonsense_ends_a_source(self):
        child, lines = self.standby(self.file("s.py", "print('ran')"))
        lines.send(modules=7)
        child.wait(timeout=60)
        lines.close()  # which ends its copy
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (1, ""))
        self.assertIn("holdfast: standby: TypeError", err)

    def test_a_module_that_fails_is_met_again_by_the_script(self):
        folder = os.path.join(self.folder, "lib")
        self.file("lib/bad.py", "raise RuntimeError('at import')")
        path = str(ROOT) + os.pathsep + folder
        script = self.file("s.py", "try:\n    import bad\nexcept RuntimeError as e:\n    print(e)\n")
        child, lines = self.standby(script, modules=["bad"], PYTHONPATH=path)
        self.assertEqual(lines.received()["skipped"], 1)
        self.assertEqual(self.become(child, lines)[1].stdout, "at import\n")

    def test_one_import_makes_many_ranks(self):
        script = self.file("s.py", """
            import os, random, sys
            print(os.environ["RANK"], os.getpid(), "json" in sys.modules, sys.argv[1], random.random(), flush=True)
            sys.exit(int(os.environ["RANK"]))
            """)
        child, lines = self.standby(script, "x", modules=("json", "random"))
        pids, codes = [], []
        for rank in range(3):
            ready = json.loads(lines.readline())
            self.assertNotEqual(ready["pid"], child.pid)
            self.order(lines, pid=ready["pid"], env={"RANK": str(rank)})
            pids.append(str(ready["pid"]))
            codes.append(exit_code(ready["pid"]))
        lines.close()
        out, err = child.communicate(timeout=60)
        said = [line.split() for line in out.splitlines()]
        self.assertEqual((codes, err), ([0, 1, 2], ""))
        self.assertEqual([words[:4] for words in said], [[str(r), pids[r], "True", "x"] for r in range(3)])
        self.assertEqual(len({words[4] for words in said}), 3, "the same random numbers in several ranks")

    def test_a_copy_that_dies_is_followed_by_another(self):
        child, lines = self.standby(self.file("s.py", "print('ran')"))
        first = json.loads(lines.readline())["pid"]
        os.kill(first, signal.SIGKILL)
        self.assertEqual(exit_code(first), -signal.SIGKILL)
        self.order(lines, pid=first, env={})  # too late: no other copy may take it
        second = json.loads(lines.readline())["pid"]
        self.assertNotIn(second, (first, child.pid))
        self.order(lines, pid=second, env={})
        self.assertEqual(self.ended(child, lines, second).stdout, "ran\n")

    def test_what_a_fork_would_break_becomes_the_rank_itself(self):
        folder = os.path.join(self.folder, "lib")
        self.file("lib/starts_a_thread.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n")
        self.file("lib/opens_a_socket.py", "import socket\npair = socket.socketpair()\n")
        self.file("lib/opens_a_file.py", "f = open(__file__)\n")
        path = str(ROOT) + os.pathsep + folder
        script = self.file("s.py", "print('ran')")
        for module, itself in {"starts_a_thread": True, "opens_a_socket": True, "opens_a_file": False}.items():
            with self.subTest(module):
                child, lines = self.standby(script, modules=[module], PYTHONPATH=path)
                facts = lines.received()
                ready, done = self.become(child, lines)
                self.assertEqual((facts["imported"], bool(facts["alone"]), ready["pid"] == child.pid, done.stdout), (1, itself, itself, "ran\n"))

    def test_where_devices_were_asked_for_it_becomes_the_rank_itself(self):
        self.file("lib/torch/__init__.py", "from . import cuda\n")
        self.file("lib/torch/cuda.py", """
            import os
            asked = os.getpid()
            def is_initialized(): return False
            def _is_in_bad_fork(): return os.getpid() != asked
            """)  # fmt: skip
        path = str(ROOT) + os.pathsep + os.path.join(self.folder, "lib")
        child, lines = self.standby(self.file("s.py", "print('ran')"), modules=["torch"], PYTHONPATH=path)
        ready, done = self.become(child, lines)
        self.assertEqual((ready["pid"], done.stdout), (child.pid, "ran\n"))

    def test_numpy_is_seeded_anew(self):
        self.file("lib/numpy/__init__.py", "")
        self.file("lib/numpy/random.py", "seeded = []\ndef seed(): seeded.append(1)\n")
        path = str(ROOT) + os.pathsep + os.path.join(self.folder, "lib")
        script = self.file("s.py", "import numpy.random; print(numpy.random.seeded)")
        _, done = self.become(*self.standby(script, modules=["numpy.random"], PYTHONPATH=path))
        self.assertEqual(done.stdout, "[1]\n")

    OWN = ("RANK", "LOCAL_RANK", "HOLDFAST_LOCAL_RANK")

    def importable(self, **modules):
        """Installed packages of one file each; returns their path."""
        for name, text in modules.items():
            self.file("lib/%s.py" % name, text)
        return str(ROOT) + os.pathsep + os.path.join(self.folder, "lib")

    def test_one_source_serves_all_ranks(self):
        script = self.file("s.py", """
            import os, sys
            print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.getpid(), "xml.dom.minidom" in sys.modules, type(os.environ).__name__,
                  sorted(os.readlink("/proc/self/fd/%d" % f).split(":")[0] for f in range(64) if os.path.exists("/proc/self/fd/%d" % f)), flush=True)
            """)
        child, lines = self.standby(script, ranks=3, own=self.OWN)
        self.assertEqual(lines.received()["alone"], "")
        ready = [json.loads(line.readline())["pid"] for line in lines.ranks]
        self.assertEqual(len({child.pid, *ready}), 4)
        for local in (2, 0):
            lines.ranks[local].write(json.dumps({"pid": ready[local], "env": {"RANK": str(10 + local), "LOCAL_RANK": str(local)}}) + "\n")
            lines.ranks[local].flush()
            self.assertEqual(exit_code(ready[local]), 0)
            again = json.loads(lines.ranks[local].readline())["pid"]
            self.assertNotIn(again, ready)
        with open("/proc/%d/comm" % ready[1]) as f:
            self.assertEqual(f.read(), "hf-standby\n", "a rank's standby has to do with those of others")
        lines.close()
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, err), (0, ""))
        said = [line.split(None, 5) for line in out.splitlines()]
        self.assertEqual([words[:5] for words in said], [[str(10 + r), str(r), str(ready[r]), "True", "_Environ"] for r in (2, 0)])
        for words in said:
            self.assertNotIn("socket", words[5])
        self.assertEqual([exit_code(ready[1])], [0])

    def test_reads_of_a_ranks_own_variables_are_noted(self):
        for text, names in {
            "import os; os.environ.get('RANK')": "RANK",
            "import os; os.getenv('LOCAL_RANK', '0')": "LOCAL_RANK",
            "import os; os.getenvb(b'LOCAL_RANK')": "LOCAL_RANK",
            "import os\ntry: os.environ['HOLDFAST_LOCAL_RANK']\nexcept KeyError: pass": "HOLDFAST_LOCAL_RANK",
            "from os import environ; first = 'RANK' not in environ": "RANK",
            "import os; os.environ.setdefault('RANK', '0')": "RANK",
            "import os; env = os.environ.copy()": "all variables",
            "import os; env = dict(os.environ)": "all variables",
            "import os; env = {**os.environ}": "all variables",
            "import os; 'RANK' in os.environ.keys()": "RANK",
            "import os; {k: v for k, v in os.environ.items() if k.startswith('TQDM_')}": "",
            "import os; 'HOME' in os.environ.keys(); os.environ.get('WORLD_SIZE')": "",
            "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)": "",
        }.items():
            with self.subTest(text):
                child, lines = self.standby(self.file("s.py", "pass"), modules=["asks", "colorsys"], ranks=2, own=self.OWN, PYTHONPATH=self.importable(asks=text))
                facts = lines.received()
                want = "module asks, which the script imports, reads " + names if names else ""
                # A source that cannot be copied imports no more.
                self.assertEqual((facts["alone"], facts["imported"]), (want, 1 if names else 2))
                lines.close()
                self.assertEqual(child.communicate(timeout=60), ("", ""))

    def test_a_known_scan_for_a_prefix_is_no_read(self):
        scan = "import os; names = [name for name in dict(os.environ) if name.startswith('FSSPEC_')]"
        for package, want in {"fsspec": "", "other": "module other.config, which the script imports, reads all variables"}.items():
            with self.subTest(package):
                self.assertEqual(self.said([package], **{package + "/__init__": "from . import config", package + "/config": scan})["alone"], want)

    def test_objects_that_pretend_a_class_are_not_asked(self):
        pretends = """
import warnings
class Old:
    @property
    def __class__(self):
        warnings.warn("deprecated", FutureWarning)
        return int
old = [Old()]
"""
        numpy = {"numpy/__init__": "", "numpy/random/__init__": "def seed(): pass", "numpy/random/bit_generator": "class BitGenerator: pass"}
        self.assertEqual(self.said(["numpy.random.bit_generator", "pretends"], pretends=pretends, **numpy)["alone"], "")

    def test_what_a_fork_would_break_serves_no_several_ranks(self):
        path = self.importable(
            starts_a_thread="import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
            opens_a_socket="import socket\npair = socket.socketpair()\n",
        )
        for module in ("starts_a_thread", "opens_a_socket"):
            with self.subTest(module):
                child, lines = self.standby(self.file("s.py", "print('ran')"), modules=[module], ranks=2, own=self.OWN, PYTHONPATH=path)
                self.assertEqual(lines.received()["alone"], "module %s, which the script imports, starts a thread or opens a socket" % module)
                lines.close()
                self.assertEqual(child.communicate(timeout=60), ("", ""))

    LATER = ("MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")

    def said(self, modules, skip=(), ranks=2, **texts):
        """The source's reports on modules that it is to import."""
        child, lines = self.standby(self.file("s.py", "pass"), modules=(), ranks=ranks, own=self.OWN, PYTHONPATH=self.importable(**texts))
        lines.received()
        lines.send(modules=modules, own=list(self.OWN) if ranks > 1 else [], later=self.LATER, skip=skip)
        facts = lines.received()
        lines.close()
        out, err = child.communicate(timeout=60)
        self.assertEqual((out, err), ("", ""))
        return facts

    def test_what_reads_a_later_variable_is_left_out_with_what_imports_it(self):
        reads = "import os; ADDR = os.environ.get('MASTER_ADDR', '127.0.0.1')"
        for ranks in (1, 2):
            facts = self.said(["outer", "colorsys"], ranks=ranks, outer="import reads", reads=reads)
            self.assertEqual((facts["without"], facts["why"]), (["outer", "reads"], "module reads, which the script imports, reads MASTER_ADDR"))
        self.assertNotIn("without", self.said(["outer"], outer="import os; os.environ.get('WORLD_SIZE')"))

    def test_what_is_left_out_is_not_run(self):
        acts = "open(__file__ + '.ran', 'w')"
        facts = self.said(["acts", "acts.inner", "colorsys"], skip=["acts"], acts=acts)
        self.assertEqual((facts["imported"], facts["skipped"]), (1, 2))
        facts = self.said(["late", "colorsys"], skip=["acts"], acts=acts, late="import importlib.util; importlib.util.find_spec('acts'); import acts")
        self.assertEqual((facts["without"], facts["why"]), (["late"], "module late, which the script imports, imports acts, which is left out"))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "lib/acts.py.ran")))

    def test_what_a_fork_would_share_is_not_shared(self):
        for text, does in {
            "import multiprocessing; LOCK = multiprocessing.Lock()": "makes shared memory or a semaphore",
            "import mmap; M = mmap.mmap(-1, 4096)": "makes shared memory or a semaphore",
            "import uuid; ID = uuid.uuid4()": "draws random bytes",
            "from os import urandom; KEY = urandom(8)": "draws random bytes",
            "import os; RUN = 'run-%d' % os.getpid()": "keeps a text with the process's id",
            "import mmap; M = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)": "",
            "import random, os; R = random.Random(); PID = os.getpid()": "",
        }.items():
            with self.subTest(text):
                want = "module takes, which the script imports, " + does if does else ""
                self.assertEqual(self.said(["takes"], takes=text)["alone"], want)

    def test_copies_renew_what_is_a_process_s_own(self):
        path = self.importable(takes="""
            import os, random, multiprocessing
            from os import getpid, urandom
            FREE, FIXED, AGAIN, PID = random.Random(), random.Random(5), random.Random(), getpid()
            AGAIN.seed(6)
            try:
                from numpy.random import default_rng, RandomState
                DRAWS, SAME = [default_rng(), RandomState()], [default_rng(5), RandomState(5), default_rng(122807528840384100672342137672332424406)]
            except ImportError:
                DRAWS, SAME = [], []
            """)
        script = self.file("s.py", """
            import json, multiprocessing, os, takes
            value = lambda g: float(g.random() if hasattr(g, "random") else g.rand())
            print(json.dumps({"own": [value(g) for g in [takes.FREE, *takes.DRAWS]] + [multiprocessing.current_process().authkey.hex()],
                "same": [value(g) for g in [takes.FIXED, takes.AGAIN, *takes.SAME]], "pid": takes.PID == os.getpid(),
                "kinds": [type(f).__name__ for f in (takes.getpid, takes.urandom, os.getpid, os.urandom)]}), flush=True)
            """)
        child, lines = self.standby(script, modules=["takes"], PYTHONPATH=path)
        for _ in range(2):
            pid = json.loads(lines.readline())["pid"]
            self.order(lines, pid=pid, env={})
            self.assertEqual(exit_code(pid), 0)
        lines.close()
        first, second = map(json.loads, child.communicate(timeout=60)[0].splitlines())
        cold = json.loads(subprocess.run([sys.executable, script], env=environment(PYTHONPATH=path), capture_output=True, check=True).stdout)
        self.assertEqual(first["same"], cold["same"])
        self.assertEqual(second["same"], cold["same"])
        self.assertEqual((first["pid"], second["pid"], first["kinds"]), (True, True, cold["kinds"]))
        for a, b in zip(first["own"], second["own"]):
            self.assertNotEqual(a, b)

    def test_the_seed_that_torch_draws_is_renewed_and_one_that_was_set_is_not(self):
        torch = """
import random
class Generator:
    def seed(self): self.value = random.SystemRandom().getrandbits(63) + (1 << 32)
    def initial_seed(self): return self.value
default_generator = Generator()
default_generator.%s
"""
        for sets, different in {"seed()": 2, "value = 42": 1}.items():
            with self.subTest(sets):
                script = self.file("s.py", "import torch; print(torch.default_generator.initial_seed())")
                child, lines = self.standby(script, modules=["torch"], ranks=2, own=self.OWN, PYTHONPATH=self.importable(torch=torch % sets))
                for line in lines.ranks:
                    pid = json.loads(line.readline())["pid"]
                    self.order(line, pid=pid, env={})
                    self.assertEqual(exit_code(pid), 0)
                lines.close()
                self.assertEqual(len(set(child.communicate(timeout=60)[0].split())), different)

    def test_identifiers_of_common_packages_keep_no_source_from_being_copied(self):
        drawn = {
            "multiprocess/__init__": "", "multiprocess/process": "import os\nclass P: authkey = os.urandom(32)\n_current_process = P()",
            "transformers/__init__": "from .utils import hub", "transformers/utils/__init__": "",
            "transformers/utils/hub": "import uuid; SESSION_ID = uuid.uuid4().hex", "takes": "import multiprocess.process, transformers",
        }
        self.assertEqual(self.said(["takes"], **drawn)["alone"], "")
        script = self.file("s.py", "import multiprocess.process as p; print(p._current_process.authkey.hex())")
        child, lines = self.standby(script, modules=["takes"], ranks=2, own=self.OWN, PYTHONPATH=self.importable(**drawn))
        for line in lines.ranks:
            pid = json.loads(line.readline())["pid"]
            self.order(line, pid=pid, env={})
            self.assertEqual(exit_code(pid), 0)
        lines.close()
        self.assertEqual(len(set(child.communicate(timeout=60)[0].split())), 2)

    def test_more_modules_are_for_the_next_copies(self):
        script = self.file("s.py", "import sys; print('json' in sys.modules, 'colorsys' in sys.modules)")
        child, lines = self.standby(script, modules=["json"], ranks=2, own=self.OWN)
        old = [json.loads(line.readline())["pid"] for line in lines.ranks]
        lines.received()
        lines.send(modules=["json", "colorsys"], own=self.OWN)
        self.assertEqual(lines.received()["imported"], 2)
        os.kill(old[1], signal.SIGKILL)
        self.assertEqual(exit_code(old[1]), -signal.SIGKILL)
        new = json.loads(lines.ranks[1].readline())["pid"]
        for line, pid in zip(lines.ranks, (old[0], new)):
            line.write(json.dumps({"pid": pid, "env": {}}) + "\n")
            line.flush()
            self.assertEqual(exit_code(pid), 0)
        lines.close()
        self.assertEqual(child.communicate(timeout=60), ("True False\nTrue True\n", ""))

    def test_a_copy_that_is_asked_for_comes_at_once(self):
        path = self.importable(rests="import holdfast_standby; holdfast_standby._REST = 3600")
        child, lines = self.standby(self.file("s.py", "print('ran')"), modules=["rests"], PYTHONPATH=path)
        first = json.loads(lines.readline())["pid"]
        self.order(lines, pid=first, env={})
        self.assertEqual(exit_code(first), 0)
        lines.send(fork=[0])
        second = json.loads(lines.readline())["pid"]
        self.order(lines, pid=second, env={})
        self.assertEqual(self.ended(child, lines, second).stdout, "ran\nran\n")


if __name__ == "__main__":
    unittest.main()
