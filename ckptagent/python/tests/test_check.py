"""The trial of one rank, alone and with another pod, by real processes."""

import array
import json
import os
import socket
import subprocess
import sys
import time
import unittest

from .case import ROOT, ScriptCase, environment
from .ports import kept
from .test_standby import Ends, adopt_orphans, exit_code

try:
    import torch
except ImportError:
    torch = None

CHECK = os.path.join(ROOT, "holdfast_check.py")
# Enough for imports on a loaded machine.
DEADLINE = 60

PLANT = """
import sys, time
import torch
import holdfast_check
%s
holdfast_check.main(sys.argv[1:])
"""

WRONG = """
right = torch.matmul
def matmul(x, y):
    p = right(x, y)
    p[3, 5] += 1
    return p
torch.matmul = matmul
"""
NAN = WRONG.replace("p[3, 5] += 1", "p[3, 5] = float('nan')")
SLOW = """
right = torch.matmul
def matmul(x, y):
    time.sleep(0.05)
    return right(x, y)
torch.matmul = matmul
"""
HANG = """
torch.matmul = lambda x, y: time.sleep(600)
"""
DEAF = """
torch.distributed.all_gather = lambda *a: time.sleep(600)
"""
GARBLED = """
right = torch.distributed.all_gather
def all_gather(theirs, mine):
    right(theirs, mine)
    theirs[0][7] += 1
torch.distributed.all_gather = all_gather
"""
# The first call fails at once, as after a connection that was reset.
ONCE = """
right, calls = torch.distributed.all_gather, []
def all_gather(theirs, mine):
    calls.append(1)
    if len(calls) == 1:
        raise RuntimeError("connection reset")
    right(theirs, mine)
torch.distributed.all_gather = all_gather
"""


class CheckCase(ScriptCase):
    def store(self):
        s = kept()
        self.addCleanup(s.close)
        return "127.0.0.1:%d" % s.getsockname()[1]

    def begin(self, *args, plant="", isolated=False, deadline=DEADLINE, imports=DEADLINE):
        program = [self.file("plant%d.py" % hash(plant), PLANT % plant)] if plant else [CHECK]
        if isolated:
            program = ["-I", "-S"] + program
        p = subprocess.Popen(
            [sys.executable, *program, *map(str, args), "--imports", str(imports), "--deadline", str(deadline)],
            env=environment(OMP_NUM_THREADS="1", PYTHONPATH="%s:%s" % (self.folder, ROOT)),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        return p

    def end(self, p):
        out, err = p.communicate(timeout=DEADLINE + 60)
        self.assertEqual(p.returncode, 0, err)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertTrue(all("part" in line for line in lines[:-1]), out)
        return lines[-1]

    def pair(self, plant="", world=2, isolated=False, deadline=DEADLINE, imports=DEADLINE, size=1 << 20):
        store = self.store()
        ranks = [
            self.begin("pair", "--rank", r, "--world", world, "--store", store, "--bytes", size, plant=plant if r == 1 else "",
                       isolated=isolated, deadline=deadline, imports=imports)
            for r in range(world)
        ]  # fmt: skip
        return [self.end(p) for p in ranks]


@unittest.skipIf(torch is None, "needs torch")
class Alone(CheckCase):
    def test_right(self):
        r = self.end(self.begin("alone"))
        self.assertEqual((r["outcome"], r["text"], r["facts"]["torch"]), ("passed", "", torch.__version__))
        self.assertGreater(r["speed"], 0)
        self.assertEqual([p["name"] for p in r["parts"]][:3], ["import", "device", "matmul"])
        self.assertTrue(all(p["seconds"] >= 0 for p in r["parts"]), r)

    def test_wrong_sum(self):
        for plant in (WRONG, NAN):
            r = self.end(self.begin("alone", plant=plant))
            self.assertEqual(r["outcome"], "wrong", r)
            self.assertRegex(r["text"], "the sum of row 3 of a product is .* and must be")

    def test_hang_is_named_with_its_part(self):
        begin = time.monotonic()
        r = self.end(self.begin("alone", plant=HANG, deadline=5))
        self.assertEqual((r["outcome"], r["text"]), ("failed", "part matmul did not end within 5 s"))
        self.assertLess(time.monotonic() - begin, DEADLINE)

    def test_slow_imports_are_no_finding(self):
        """They do not count against the deadline, and those that do not end are late."""
        self.file("torch.py", "import time\ntime.sleep(4)\nraise ImportError")
        r = self.end(self.begin("alone", deadline=2))
        self.assertEqual(r["outcome"], "passed", r)
        self.assertGreaterEqual(r["parts"][0]["seconds"], 4)
        r = self.end(self.begin("alone", deadline=30, imports=1))
        self.assertEqual((r["outcome"], r["text"]), ("late", "part import did not end within 1 s"))

    def test_slow(self):
        usual, slow = self.end(self.begin("alone")), self.end(self.begin("alone", plant=SLOW))
        self.assertEqual(slow["outcome"], "passed")
        self.assertLess(slow["speed"], 0.9 * usual["speed"])

    def test_ranks_of_one_pod(self):
        store = self.store()
        ranks = [self.begin("alone", "--rank", r, "--world", 2, "--store", store, "--bytes", 1 << 20) for r in range(2)]
        for r in map(self.end, ranks):
            self.assertEqual(r["outcome"], "passed", r)
            self.assertEqual([p["name"] for p in r["parts"]][-3:], ["meet", "exchange", "agree"])


@unittest.skipIf(torch is None, "needs torch")
class Pair(CheckCase):
    def test_right(self):
        for r in self.pair():
            self.assertEqual((r["outcome"], r["backend"]), ("passed", "nccl" if torch.cuda.is_available() else "gloo"), r)
            self.assertGreater(r["speed"], 0)

    def test_garbled_bytes_fail_on_both_sides(self):
        for r in self.pair(GARBLED, size=16 << 20):  # several pieces
            self.assertEqual(r["outcome"], "failed", r)
            self.assertEqual(r["text"], "part agree: Failed: rank 1: Failed: the bytes from rank 0 differ from those it sent")

    def test_hang_fails_on_both_sides(self):
        for r in self.pair(DEAF):
            self.assertEqual(r["outcome"], "failed", r)

    def test_failure_that_passes_is_tried_again(self):
        for r in self.pair(ONCE, deadline=2 * DEADLINE):
            self.assertEqual(r["outcome"], "passed", r)
            self.assertEqual([p["name"] for p in r["parts"]].count("exchange"), 2)

    def test_partner_that_imports_slowly(self):
        """The time in which a rank waits for it does not count against its deadline."""
        for r in self.pair("time.sleep(5)", deadline=4):
            self.assertEqual(r["outcome"], "passed", r)

    def test_no_partner_comes(self):
        store = self.store()
        for rank in range(2):
            r = self.end(self.begin("pair", "--rank", rank, "--world", 2, "--store", store, deadline=2, imports=DEADLINE / 4))
            self.assertIn(r["outcome"], ("absent", "late"), r)


@unittest.skipIf(torch is None, "needs torch")
class Forks(CheckCase):
    """The processes of trials as forks of one interpreter, with and without the site hook."""

    def source(self, *flags):
        adopt_orphans()
        lines = Ends(2)
        env = environment(OMP_NUM_THREADS="1", HOLDFAST_MARK="source" + 100 * "-", **lines.variables)
        source = subprocess.Popen(
            [sys.executable, *flags, "-u", CHECK], env=env, cwd=self.folder, pass_fds=[s.fileno() for s in lines.theirs],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.addCleanup(source.communicate)
        self.addCleanup(source.kill)
        for s in lines.theirs:
            s.close()
        lines.send(modules=["torch", "torch.distributed"], own=["RANK", "LOCAL_RANK"], later=["MASTER_ADDR"], marks=True)
        said = lines.received()
        self.assertEqual((said["alone"], said["imported"], said["cuda"]), ("", 2, False))
        lines.send(fork=[0, 1])
        return source, lines

    def order(self, lines, rank, mark, *args):
        """Makes the fork that waits for a rank the process of a trial; returns its id and its output."""
        ready = json.loads(lines.ranks[rank].readline())
        with open("/proc/%d/maps" % ready["pid"]) as f:
            self.assertTrue("libtorch" in f.read(), "it has not imported torch before its order")
        ours, theirs = os.pipe()
        args = [*map(str, args), "--imports", str(DEADLINE), "--deadline", str(DEADLINE)]
        order = {"pid": ready["pid"], "env": {"HOLDFAST_MARK": mark}, "cwd": self.folder, "args": args}
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))]
        lines.sockets[1 + rank].sendmsg([json.dumps(order).encode() + b"\n"], files)
        os.close(theirs)
        return ready["pid"], open(ours)

    def marks(self, pid):
        with open("/proc/%d/environ" % pid) as f:
            return [v for v in f.read().split("\0") if v.startswith("HOLDFAST_MARK=")]

    def trials(self, *flags):
        source, lines = self.source(*flags)
        for mode, mark in (("alone", "first"), ("pair", "second")):
            store = self.store()
            ranks = [
                self.order(lines, r, mark, mode, "--rank", r, "--world", 2, "--local-rank", r, "--store", store, "--bytes", 1 << 20)
                for r in range(2)
            ]
            for pid, out in ranks:
                first = json.loads(out.readline())
                self.assertEqual((first, self.marks(pid)), ({"part": "import"}, ["HOLDFAST_MARK=" + mark]))
            for pid, out in ranks:
                with out:
                    r = json.loads(out.read().splitlines()[-1])
                self.assertEqual((r["outcome"], exit_code(pid)), ("passed", 0), r)
        self.assertEqual(self.marks(source.pid), ["HOLDFAST_MARK=source" + 100 * "-"])
        lines.close()
        self.assertEqual(source.wait(DEADLINE), 0)

    def test_trials(self):
        self.trials()

    def test_trials_without_site_hook(self):
        self.trials("-E")


class Plain(CheckCase):
    def test_without_torch(self):
        for r in self.pair(isolated=True):
            self.assertEqual((r["outcome"], r["backend"]), ("passed", "tcp"), r)
            self.assertGreater(r["speed"], 0)

    def test_no_partner_comes(self):
        store = self.store()
        for rank in range(2):
            r = self.end(self.begin("pair", "--rank", rank, "--world", 2, "--store", store, isolated=True, deadline=3, imports=1))
            self.assertEqual(r["outcome"], "absent", r)

    def test_bad_arguments(self):
        for args in (["pair", "--world", "2"], ["pair", "--rank", "2", "--world", "2", "--store", "a:1"], ["alone", "--bytes", "0"]):
            p = self.begin(*args, isolated=True)
            p.communicate()
            self.assertEqual(p.returncode, 2)


if __name__ == "__main__":
    unittest.main()
