"""What a rank prepares for the agent's looks, with torch itself."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock

import _holdfast_watch as watch

from .case import ROOT, ScriptCase, environment

try:
    import torch
except ImportError:
    torch = None

JOIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
"""


class Spans(unittest.TestCase):
    def test_ranks_as_text(self):
        for ranks, want in (
            ([0], "0"),
            ([0, 1], "0,1"),
            ([0, 1, 2, 3], "0-3"),
            ([0, 8, 16, 24], "0-24/8"),
            ([3, 2, 1, 0], "3,2,1,0"),
            ([0, 1, 2, 7, 9, 11, 13], "0-2,7-13/2"),
            ([5, 1, 2, 3], "5,1-3"),
            (list(range(10000)), "0-9999"),
        ):
            self.assertEqual(watch.spans(ranks), want)


class WatchCase(ScriptCase):
    def setUp(self):
        super().setUp()
        self.looks, self.page = os.path.join(self.folder, "looks-0"), os.path.join(self.folder, "page")
        with open(self.page, "wb") as f:
            f.write(bytes(1 << 20))

    def environment(self, **extra):
        ours = {"HOLDFAST_LOCAL_RANK": "0", "HOLDFAST_ERROR_FILE": self.folder + "/e", "HOLDFAST_PAGE": self.page, "HOLDFAST_LOOKS": self.looks}
        return {**ours, "OMP_NUM_THREADS": "1", **extra}

    def rank(self, text, **extra):
        """Starts a script and waits for its line `ready`."""
        p = subprocess.Popen(
            [sys.executable, self.file("s.py", text)],
            env=environment(**self.environment(**extra)),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        self.assertEqual(p.stdout.readline(), "ready\n")
        return p

    def armed(self):
        """Process, signal and start of the page."""
        with open(self.page, "rb") as f:
            n = struct.unpack_from("<9Q", f.read(72))
        return n[2], n[7], n[8]

    def stack(self, p):
        pid, number, _ = self.armed()
        self.assertEqual(pid, p.pid)
        os.truncate(self.looks + ".stack", 0)
        os.kill(pid, number)
        for _ in range(1000):
            text = read(self.looks + ".stack")
            if text.endswith("\n") and "<module>" in text:
                return text
            time.sleep(0.01)
        self.fail("no stack, only %r" % text)

    def ask(self, handler="fr_trace_json"):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(self.looks + ".sock")
            s.sendall(b"POST /handler/%s HTTP/1.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % handler.encode())
            answer = b""
            while more := s.recv(1 << 16):
                answer += more
        return answer.partition(b"\r\n\r\n")[2].decode()


def handles(pid, number):
    caught = next(line for line in read("/proc/%d/status" % pid).splitlines() if line.startswith("SigCgt"))
    return int(caught.split()[1], 16) >> (number - 1) & 1


def read(path):
    with open(path) as f:
        return f.read()


@unittest.skipIf(torch is None, "needs torch")
class Prepared(WatchCase):
    def test_a_rank_that_sleeps(self):
        p = self.rank(JOIN + """
everyone = dist.new_group([0], group_desc="mine")
dist.all_reduce(torch.ones(2, 3))
dist.barrier(group=everyone)
def load_batch():
    print("ready", flush=True)
    time.sleep(600)
load_batch()
""")  # fmt: skip
        pid, number, start = self.armed()
        self.assertEqual((pid, start), (p.pid, int(read("/proc/%d/stat" % p.pid).rpartition(")")[2].split()[19])))
        self.assertGreater(number, 40)
        self.assertIn("in load_batch\n", self.stack(p))
        self.assertNotIn("Current thread", self.stack(p), "only one thread")
        answer = json.loads(self.ask())
        self.assertEqual([(e["process_group"][0], e["profiling_name"]) for e in answer["entries"]], [("0", "gloo:all_reduce"), ("1", "gloo:barrier")])
        self.assertEqual([line.split("\t")[::2] for line in read(self.looks + ".groups").splitlines()], [["0", "0"], ["1", "0"]])
        self.assertIn("gloo", read(self.looks + ".groups").splitlines()[0].split("\t")[1])
        for path in (".sock", ".stack", ".groups"):
            self.assertEqual(os.stat(self.looks + path).st_mode & 0o777, 0o600)
        high = [int(fd) for fd in os.listdir("/proc/%d/fd" % p.pid) if os.readlink("/proc/%d/fd/%s" % (p.pid, fd)).endswith(".stack")]
        self.assertEqual(len(high), 1)
        self.assertGreaterEqual(high[0], 900)

    def test_while_the_interpreters_lock_is_held(self):
        p = self.rank(JOIN + """
import re
def spin():
    print("ready", flush=True)
    re.match("(a*)*b", "a" * 40)
spin()
""")  # fmt: skip
        time.sleep(0.2)
        self.assertIn("in spin\n", self.stack(p))
        self.assertIn("pg_config", json.loads(self.ask()))

    def test_while_the_group_is_joined(self):
        """The other rank never comes: the agent can look all the same."""
        p = self.rank(JOIN.replace("dist.init", "print('ready', flush=True)\ndist.init").replace("world_size=1", "world_size=2"))
        for _ in range(1000):
            if self.armed()[1]:
                break
            time.sleep(0.01)
        self.assertIn("in init_process_group\n", self.stack(p))

    def test_one_process_is_prepared(self):
        """Neither a process that the rank forks, before or after, nor one that it starts; they end as usual."""
        alone = "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
        p = self.rank(f"""
import os, subprocess, sys, time
import torch.distributed as dist
def child(do):
    if (pid := os.fork()) == 0:
        do()
        os._exit(0)
    return os.waitpid(pid, 0)[1]
bad = child(lambda: {alone})
{alone}
bad = bad or child(lambda: dist.barrier) or subprocess.run([sys.executable, "-c", "import torch.distributed as dist; " + {alone!r}]).returncode
print("bad" if bad else "ready", flush=True)
time.sleep(600)
""")  # fmt: skip
        self.assertEqual(self.armed()[0], p.pid)
        self.assertEqual(read(self.looks + ".groups").count("\n"), 1)
        self.assertIn("pg_config", json.loads(self.ask()))
        self.assertIn("in <module>\n", self.stack(p))

    def test_a_module_of_a_standby(self):
        """It was imported before the hook ran, with torch's own names."""
        p = self.rank(f"""
import os, sys, types
import torch.distributed as dist
import _holdfast_site, _holdfast_page
early = types.ModuleType("early")
exec("from torch.distributed import init_process_group", vars(early))
sys.modules["early"] = early
import torch.distributed.distributed_c10d as c10d
early.ranks = c10d._pg_group_ranks
assert early.init_process_group is dist.init_process_group
_holdfast_site.watch({self.page!r}, {self.looks!r})
early.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print("ready", flush=True)
os.read(0, 1)
""", HOLDFAST_PAGE="")  # fmt: skip
        self.assertNotEqual(self.armed()[1], 0)
        self.assertEqual(read(self.looks + ".groups").count("\n"), 1)

    def test_groups_without_this_rank_and_a_second_world(self):
        self.rank(JOIN + """
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.new_group([0])
print("ready", flush=True)
time.sleep(600)
""")  # fmt: skip
        self.assertEqual([line.split("\t")[0] for line in read(self.looks + ".groups").splitlines()], ["0", "0", "1"])

    def test_a_signal_that_the_script_uses_is_not_taken(self):
        self.rank("import signal\nfor n in (63, 62): signal.signal(n, lambda *_: None)\nsignal.signal(61, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [60])\n" + JOIN + "print('ready', flush=True)\ntime.sleep(600)\n")
        self.assertEqual(self.armed()[1], 59)


@unittest.skipIf(torch is None, "needs torch")
class Unnoticed(WatchCase):
    """The script runs as without us."""

    def both(self, text, **extra):
        script = self.file("s.py", text)
        ours = self.python(script, **self.environment(**extra))
        if os.path.exists(self.folder + "/store"):
            os.unlink(self.folder + "/store")
        plain = self.python(script, OMP_NUM_THREADS="1")
        return plain, ours

    def test_output_and_exit_code(self):
        for last, code in (("print('done')", 0), ("dist.destroy_process_group(); sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)):
            plain, ours = self.both(JOIN + "dist.all_reduce(torch.ones(2))\n" + last)
            self.assertEqual((plain.returncode, ours.returncode), (code, code))
            self.assertEqual((plain.stdout, plain.stderr), (ours.stdout, ours.stderr))
            self.assertNotEqual(self.armed()[1], 0)

    def test_a_failure_in_it_is_shown_with_torchs_error(self):
        plain, ours = self.both("import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, timeout=3)\n")
        self.assertEqual(plain.stderr.splitlines()[-1], ours.stderr.splitlines()[-1])
        self.assertEqual((plain.returncode, ours.returncode), (1, 1))

    def test_without_a_group_nothing_is_made(self):
        plain, ours = self.both("import torch.distributed as dist, os\nprint(len(os.listdir('/proc/self/task')), dist.is_initialized())\n")
        self.assertEqual((plain.stdout, plain.stderr), (ours.stdout, ours.stderr))
        self.assertEqual(self.armed()[1:], (0, 0))
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("looks-")])

    def test_what_cannot_be_prepared_is_left_out(self):
        for looks in (self.folder + "/none/looks-0", self.folder + "/" + "x" * 120 + "/looks-0"):
            plain, ours = self.both(JOIN + "print(dist.get_world_size())", HOLDFAST_LOOKS=looks)
            self.assertEqual((ours.returncode, plain.stdout, plain.stderr), (0, ours.stdout, ours.stderr))
            self.assertEqual(self.armed()[1], 0)

    def test_its_signal_does_not_end_a_process_whose_interpreter_has_ended(self):
        hold = "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)\n"
        p = self.rank(hold + JOIN + "print('ready', flush=True)\n")
        number = self.armed()[1]
        for _ in range(1000):
            if not handles(p.pid, number):
                break
            time.sleep(0.01)
        self.assertFalse(handles(p.pid, number))
        os.kill(p.pid, number)
        p.kill()
        self.assertEqual(p.wait(), -signal.SIGKILL)

    def test_a_descriptor_limit(self):
        plain, ours = self.both("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))\n" + JOIN + "print('done')\n")
        self.assertEqual((plain.stdout, plain.stderr), (ours.stdout, ours.stderr))
        self.assertNotEqual(self.armed()[1], 0)

    def test_a_compiler_sees_no_difference(self):
        plain, ours = self.both(JOIN + """
import torch._dynamo as dynamo
def step(x):
    ranks = dist.get_process_group_ranks(dist.group.WORLD)
    dist.all_reduce(x)
    return x * len(ranks) + dist.get_rank() + dist.get_global_rank(dist.group.WORLD, 0)
for whole in (False, True):
    dynamo.reset()
    dynamo.utils.counters.clear()
    try:
        said = torch.compile(step, backend="eager", fullgraph=whole)(torch.ones(3)).tolist()
    except Exception as e:
        said = type(e).__name__ + str(e).split(chr(10))[0]
    print(whole, said, {k: dict(v) for k, v in sorted(dynamo.utils.counters.items()) if k in ("stats", "graph_break", "unimplemented", "frames")})
""")  # fmt: skip
        self.assertEqual((plain.stdout, plain.stderr), (ours.stdout, ours.stderr))
        self.assertEqual(plain.stdout.count("\n"), 2)

    def test_few_threads_may_be_made(self):
        self.assertTrue(watch._room(10))
        read_before = watch._read
        self.addCleanup(setattr, watch, "_read", read_before)

        def read(path):
            if path.startswith("/sys/fs/cgroup/pids/"):
                raise FileNotFoundError
            return {"/sys/fs/cgroup/pids.max": "100\n", "/sys/fs/cgroup/pids.current": "81\n"}[path]

        watch._read = read
        self.assertFalse(watch._room(10))
        self.assertTrue(watch._room(9))

    @unittest.skipIf(os.getuid() != 0, "root has no limit of threads, and only root becomes another user")
    def test_threads_are_tried(self):
        out = subprocess.run([sys.executable, "-c", """
import os, resource, time
import _holdfast_watch as watch
os.setuid(54321)  # with no other process
resource.setrlimit(resource.RLIMIT_NPROC, (12, 12))
print(watch._startable(8), watch._startable(12), watch._startable(8))
"""], env=dict(os.environ, PYTHONPATH=ROOT), capture_output=True, text=True, timeout=60)  # fmt: skip
        self.assertEqual((out.stdout, out.stderr), ("True False True\n", ""))

    def test_ranks_take_turns(self):
        first = watch._turn(self.folder)
        self.addCleanup(os.close, first)
        before, slept = time.sleep, []
        self.addCleanup(setattr, time, "sleep", before)
        time.sleep = slept.append
        self.assertIsNone(watch._turn(self.folder))
        self.assertAlmostEqual(sum(slept), 2)

    def test_no_turn_without_a_server(self):
        with unittest.mock.patch.dict(sys.modules, {"torch._C._distributed_c10d": None}), self.assertRaises(ImportError):
            watch.serve(os.path.join(self.folder, "0.sock"))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "looks.lock")))


@unittest.skipIf(torch is None, "needs torch")
class Costs(WatchCase):
    def test_what_it_costs(self):
        p = self.rank("""
import os, sys, time
import torch, torch.distributed as dist, _holdfast_watch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4
before, threads = resident(), len(os.listdir("/proc/self/task"))
w = dist.init_process_group.__closure__
prepare = [c.cell_contents for c in w if isinstance(c.cell_contents, _holdfast_watch.Watch)][0].prepare
begin = time.process_time()
prepare()
took = time.process_time() - begin
time.sleep(0.5)
print("ready", flush=True)
print(took * 1e3, resident() - before, len(os.listdir("/proc/self/task")) - threads, flush=True)
os.read(0, 1)
""")  # fmt: skip
        took, resident, threads = (float(n) for n in p.stdout.readline().split())
        print("a rank is prepared in %.1f ms of processor time; it takes %d KiB and %d threads" % (took, resident, threads), file=sys.stderr)
        self.assertLess(took, 500)
        self.assertLess(resident, 8 << 10)


if __name__ == "__main__":
    unittest.main()
