"""Runs examples/pytorch-ddp as plain torchrun runs it, and as a Holdfast job whose ranks are killed: the losses are equal,
bit for bit.

The last test changes one restored byte and expects the comparison to fail.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from . import ports
from .fakeagent import FakeAgent
from .test_torch import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT.parents[1] / "examples" / "pytorch-ddp" / "train.py"
RANKS, STEPS, CUT = 2, 8, 4
LINE = re.compile(r"step (\d+) rank (\d+) loss (\S+)")


class Gang:
    """Both ranks of one generation, and an agent for each."""

    def __init__(self, folder, agents, steps=STEPS, pause=0.0):
        self.port = ports.kept()
        self.losses, self.children, self.readers = {}, [], []
        for rank in range(RANKS):
            env = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTHON"))}
            env.update(
                PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port.getsockname()[1]), OMP_NUM_THREADS="1",
            )  # fmt: skip
            if agents:
                env.update(agents[rank].environment())
            command = [sys.executable, "-u", str(SCRIPT), "--steps", str(steps), "--pause", str(pause)]
            child = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            reader = threading.Thread(target=self.read, args=(child,))
            reader.start()
            self.children.append(child)
            self.readers.append(reader)

    def read(self, child):
        for line in child.stdout:
            m = LINE.fullmatch(line.strip())
            if m:
                self.losses[int(m[1]), int(m[2])] = m[3]

    def running(self):
        return all(c.poll() is None for c in self.children)

    def end(self, kill=False):
        """Waits for the end, or kills the ranks; returns what went wrong."""
        wrong = ""
        for child in self.children:
            if kill:
                child.kill()
            wrong += child.stderr.read()
            child.wait()
            child.stderr.close()
        for reader, child in zip(self.readers, self.children):
            reader.join()
            child.stdout.close()
        self.port.close()
        return wrong if not kill and any(c.returncode for c in self.children) else ""


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Example(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def agents(self, folder, generation, step):
        agents = [FakeAgent(folder, rank=r, state_bytes=1 << 20, generation=generation, restore_step=step) for r in range(RANKS)]
        for a in agents:
            a.open_grant()
        return agents

    def seal(self, agents):
        """Like agents and coordinator: a step is common once all ranks have sealed it."""
        for a in agents:
            a.seal(everywhere=False)
        newest = [max((s.step for s in map(a.slot, range(3)) if s.state == 2), default=0) for a in agents]
        held = set.intersection(*({s.step for s in map(a.slot, range(3)) if s.state == 2} for a in agents))
        for a in agents:
            a.common_step, a.reclaim_below = max(held, default=0), min(newest)
            if a.granted == 0xFFFFFFFF:
                a.open_grant()
        return max(held, default=0)

    def generation(self, folder, generation, step, until=None):
        agents = self.agents(folder, generation, step)
        gang = Gang(folder, agents, pause=0.05)
        while gang.running() and (until is None or self.seal(agents) < until):
            self.seal(agents)
            time.sleep(0.001)
        wrong = gang.end(kill=until is not None)
        held = self.seal(agents)
        for a in agents:
            a.close()
        self.assertEqual(wrong, "")
        return gang.losses, held

    def test_bit_for_bit(self):
        plain = Gang(self.folder, None)
        self.assertEqual(plain.end(), "")
        self.assertEqual(len(plain.losses), RANKS * STEPS)

        cut, held = self.generation(self.folder, 1, 0, until=CUT)
        self.assertGreaterEqual(held, CUT)
        self.assertLess(held, STEPS)
        changed = os.path.join(self.folder, "changed")
        os.mkdir(changed)
        for rank in range(RANKS):
            shutil.copy(os.path.join(self.folder, "rank-%d.arena" % rank), changed)

        rest, _ = self.generation(self.folder, 2, held)
        self.assertEqual(min(step for step, _ in rest), held + 1, "it went on from the restored step")
        for losses in (cut, rest):
            for at, loss in losses.items():
                self.assertEqual(loss, plain.losses[at], "step %d, rank %d" % at)
        self.assertEqual(set(cut) | set(rest), set(plain.losses))

        # The same restart with one byte of a weight changed, on one rank.
        agents = self.agents(changed, 2, held)
        slot = next(i for i in range(3) if agents[1].slot(i).state == 2 and agents[1].slot(i).step == held)
        agents[1].flip(slot, 64 + 4 * 100 + 2)  # an upper bit of the mantissa of a number in the first tensor
        for a in agents:
            a.close()
        wrong, _ = self.generation(changed, 2, held)
        self.assertTrue(
            any(loss != plain.losses[at] for at, loss in wrong.items()), "one restored byte was changed and the comparison did not see it"
        )


if __name__ == "__main__":
    unittest.main()
