"""A rank that holds no state gets that of another one over the process group."""

import os
import pathlib
import subprocess
import sys
import unittest

from holdfast import _arena, _donor

from . import ports
from .case import ClientCase, environment
from .fakeagent import FakeAgent
from .test_torch import torch

SCRIPT = pathlib.Path(__file__).parent / "donor_script.py"
SAVED, LAST = 2, 4


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class TwoRanks(ClientCase):
    def run_ranks(self, seed, agents, **extra):
        """The output of each rank, and what it wrote to stderr."""
        port = ports.kept()
        self.addCleanup(port.close)
        children = []
        for rank, agent in enumerate(agents):
            env = environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(agents)), MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port.getsockname()[1]), OMP_NUM_THREADS="1", **agent.environment(), **extra,
            )  # fmt: skip
            command = [sys.executable, "-W", "ignore", str(SCRIPT), str(seed), str(LAST), str(SAVED)]
            children.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ended = [c.communicate(timeout=300) for c in children]
        for rank, child in enumerate(children):
            self.assertEqual(child.returncode, 0, "rank %d: %s" % (rank, ended[rank][1][-3000:]))
        return [(out.splitlines(), errors) for out, errors in ended]

    def agents_of(self, generation, step, folders):
        agents = []
        for rank, folder in enumerate(folders):
            os.makedirs(folder, exist_ok=True)
            agents.append(FakeAgent(folder, rank=rank, state_bytes=1 << 18, generation=generation, restore_step=step))
            agents[-1].open_grant()
            self.addCleanup(agents[-1].close)
        return agents

    def test_the_one_that_joins_continues_with_the_others(self):
        at = [os.path.join(self.folder, name) for name in ("a", "b", "new")]
        agents = self.agents_of(1, 0, at[:2])
        whole = [out for out, _ in self.run_ranks(1, agents)]
        self.assertEqual([a.seal() for a in agents], [SAVED] * 2)
        for a in agents:
            self.assertEqual(a.client().span, 1)
            self.assertTrue(a.client().flags & _arena.FLAG_GROUPED)

        # rank 1 comes back in a new pod, without state and with another seed
        rest = self.run_ranks(2, self.agents_of(2, SAVED, [at[0], at[2]]), HOLDFAST_DONOR="1")
        for rank in range(2):
            self.assertEqual(rest[rank][0][:-1], whole[rank][SAVED:-1])
        self.assertEqual(rest[0][0][-1], whole[0][-1], "the random states of the donor are its own")
        self.assertNotEqual(rest[0][0][-1], rest[1][0][-1])
        self.assertIn("rank 0 gave its state to this rank", rest[1][1])
        self.assertNotIn("gave its state", rest[0][1])


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class WithoutGroup(ClientCase):
    def test_the_remedy_is_said(self):
        agent = FakeAgent(self.folder, restore_step=2)
        self.addCleanup(agent.close)
        ck = self.attach(environment={**agent.environment(), "HOLDFAST_DONOR": "1"})
        ck.track(w=torch.zeros(2))
        with self.assertRaisesRegex(Exception, r"call init_process_group\(\) before restore\(\)"):
            ck.restore()

    def test_span(self):
        self.assertEqual(_donor.span({"w": torch.zeros(2), "d": {"l": [torch.nn.Linear(2, 2)]}}), 1)
        self.assertFalse(_donor.grouped())


if __name__ == "__main__":
    unittest.main()
