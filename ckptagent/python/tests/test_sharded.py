"""States sharded over ranks: each rank saves and restores alone, and another layout is refused."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest

import holdfast
from holdfast import _arena as A

from . import ports
from .case import ClientCase, Holder, environment
from .fakeagent import FakeAgent
from .test_torch import bits, torch

SCRIPT = pathlib.Path(__file__).parent / "sharded_script.py"
RANKS, SAVED, LAST = 4, 2, 4
PATIENCE = 1200


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class FourRanks(ClientCase):
    """Killed after the save of a step and restarted with other weights: the following losses are the same."""

    def start(self, seed, agents):
        port = ports.kept()
        self.addCleanup(port.close)
        folder = os.path.join(self.folder, "turns-%d" % seed)
        os.mkdir(folder)
        children = []
        for rank, agent in enumerate(agents):
            env = environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port.getsockname()[1]),
                OMP_NUM_THREADS="1", **agent.environment(),
            )  # fmt: skip
            command = [sys.executable, "-W", "ignore", str(SCRIPT), str(seed), str(LAST), str(SAVED), folder]
            errors = open(os.path.join(folder, "stderr-%d" % rank), "w+")
            self.addCleanup(errors.close)
            child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
            child.errors = errors
            children.append(child)
        hung = threading.Timer(PATIENCE, lambda: [c.kill() for c in children])
        hung.start()
        self.addCleanup(hung.cancel)
        return children

    def losses(self, children):
        """(rank, model, step) -> loss, of ranks that have finished all steps. Then the ranks are killed."""
        losses, lines = {}, re.compile(r"loss of (.+) in step (\d+): (\S+)")
        try:
            for rank, child in enumerate(children):
                line = ""
                for line in child.stdout:
                    m = lines.match(line)
                    if m:
                        losses[rank, m[1], int(m[2])] = m[3]
                    if line == "done\n":
                        break
                if line != "done\n":
                    child.errors.seek(0)
                    self.fail("rank %d ended: %s" % (rank, child.errors.read()[-3000:]))
        finally:
            for child in children:
                child.kill()
                child.communicate()
        return losses

    def agents_of(self, generation, step):
        agents = [FakeAgent(self.folder, rank=r, state_bytes=1 << 18, generation=generation, restore_step=step) for r in range(RANKS)]
        for a in agents:
            a.open_grant()
            self.addCleanup(a.close)
        return agents

    def test_bit_for_bit(self):
        agents = self.agents_of(1, 0)
        whole = self.losses(self.start(1, agents))
        self.assertEqual([a.seal() for a in agents], [SAVED] * RANKS)
        self.assertEqual(len(whole), RANKS * 4 * LAST)
        self.assertEqual(len(set(whole.values())), 2 * 4 * LAST, "the two data parallel halves have the same data, or steps are alike")

        rest = self.losses(self.start(2, self.agents_of(2, SAVED)))
        self.assertEqual(rest, {at: loss for at, loss in whole.items() if at[2] > SAVED})


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class OneRank(ClientCase):
    @classmethod
    def setUpClass(cls):
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)

    def mesh(self, *names):
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names)

    def shard(self, whole, mesh, *dims):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        return distribute_tensor(whole, mesh, [Replicate() if d is None else Shard(d) for d in dims])

    def saved(self, **objects):
        agent = self.agent()
        ck = self.attach(agent)
        ck.track(**objects)
        self.assertTrue(ck.save(3))
        agent.seal()
        return self.next_generation(ck, agent, 3)

    def restored(self, agent, **objects):
        ck = self.attach(agent)
        ck.track(**objects)
        self.assertEqual(ck.restore(), 3)
        return ck

    def refused(self, agent, **objects):
        """The error of a restore into these objects."""
        ck = self.attach(agent)
        ck.track(**objects)
        with self.assertRaises(holdfast.RestoreError) as e:
            ck.restore()
        self.release(ck)
        return str(e.exception)

    def test_in_place_wherever_it_is_tracked(self):
        mesh, want = self.mesh("dp"), torch.randn(3, 4)
        agent = self.saved(w=self.shard(want, mesh, 0), d={"l": [self.shard(want, mesh, 1)]}, h=Holder(a=self.shard(want, mesh, None)))
        w, inner, average = (self.shard(torch.zeros(3, 4), mesh, d) for d in (0, 1, None))
        holder = Holder(a=average)
        ck = self.restored(agent, w=w, d={"l": [inner]}, h=holder)
        self.assertIs(holder.state["a"], average)
        for t in (w, inner, average):
            self.assertEqual(bits(t.to_local()), bits(want))
        slot, header = ck._arena.find(3)
        before = agent.data(slot, header.length)
        w.fill_(9)
        self.assertEqual(agent.data(slot, header.length), before)

    def test_the_layout_says_what_a_shard_is_part_of(self):
        agent = self.saved(w=self.shard(torch.zeros(3, 4), self.mesh("dp", "tp"), 1, None))
        ck = self.attach(agent)
        slot, header = ck._arena.find(3)
        self.assertIn(
            b'["dtensor","float32",[3,4],384,48,{"strides":null,"shape":[3,4],"stride":[4,1],"mesh":[1,1],"dims":["dp","tp"],'
            b'"at":[0,0],"placements":[["shard",1],["replicate"]]}]',
            agent.data(slot, header.length),
        )

    def test_another_layout_is_refused(self):
        dp, both = self.mesh("dp"), self.mesh("dp", "tp")
        agent = self.saved(s={"w": self.shard(torch.zeros(4, 4), dp, 0)})
        was = r"s\['w'\] was saved as a tensor of shape \[4, 4\], placed \(Shard\(0\)\) on the mesh {dp: 1}, this rank at \(0,\)"
        for name, now, says in (
            ("placement", self.shard(torch.zeros(4, 4), dp, 1), r"; now it is .* placed \(Shard\(1\)\) on the mesh {dp: 1}"),
            ("mesh", self.shard(torch.zeros(4, 4), both, 0, 1), r"; now it is .* placed \(Shard\(0\), Shard\(1\)\) on the mesh {dp: 1, tp: 1}"),
            ("name", self.shard(torch.zeros(4, 4), self.mesh("other"), 0), r"; now it is .* on the mesh {other: 1}"),
            ("shape", self.shard(torch.zeros(8, 4), dp, 0), r"; now it is a tensor of shape \[8, 4\]"),
            ("whole", torch.zeros(4, 4), r"and now it is a Tensor that is not sharded"),
        ):
            with self.subTest(name):
                said = self.refused(agent, s={"w": now})
                self.assertRegex(said, "restoring step 3: " + was + ".*" + says)
                self.assertIn("state in memory is not resharded: start with the mesh", said)

    def test_what_was_whole_is_not_put_into_shards(self):
        agent = self.saved(s={"w": torch.zeros(4)})
        said = self.refused(agent, s={"w": self.shard(torch.zeros(4), self.mesh("dp"), 0)})
        self.assertRegex(said, r"s\['w'\] was saved unsharded and is now a tensor of shape \[4\], placed")

    def test_an_optimizer_that_has_not_stepped_takes_the_mesh_of_its_parameters(self):
        def made(mesh):
            p = torch.nn.Parameter(self.shard(torch.ones(4), mesh, 0))
            return p, torch.optim.Adam([p], lr=0.1)

        # Two meshes of the same shape, without names: only the parameter shows which one is meant.
        from torch.distributed.device_mesh import DeviceMesh

        p, optimizer = made(DeviceMesh("cpu", [0]))
        p.grad = torch.ones_like(p)
        optimizer.step()
        agent = self.saved(o=optimizer)
        fresh, again = made(DeviceMesh("cpu", [0]))
        ck = self.restored(agent, o=again)
        kept = again.state[fresh]["exp_avg"]
        self.assertEqual(kept.placements, p.placements)
        self.assertEqual(bits(kept.to_local()), bits(optimizer.state[p]["exp_avg"].to_local()))
        _, other = made(self.mesh("dp"))
        self.assertRegex(self.refused(self.next_generation(ck, agent, 3), o=other), r"o\['state'\]\[0\]\['exp_avg'\] was saved as .* no tracked tensor is on such a mesh now")

    def test_tied_shards_are_stored_once(self):
        w = self.shard(torch.zeros(64, 64), self.mesh("dp"), 0)
        agent = self.saved(s={"a": w, "b": w})
        self.assertLess(max(agent.slot(i).length for i in range(A.SLOTS)), 2 * 64 * 64 * 4)

    def test_an_unknown_kind_of_leaf_is_refused(self):
        agent = self.saved(s={"w": self.shard(torch.zeros(4), self.mesh("dp"), 0)})
        ck = self.attach(agent)
        slot, header = ck._arena.find(3)
        agent.flip(slot, agent.data(slot, header.length).index(b'"dtensor"') + 1)
        self.release(ck)
        self.assertIn("restoring step 3: buffer kind 'etensor' is unknown", self.refused(agent, s={}))

    def test_another_part_of_zero_1_is_refused(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        def made(n):
            return ZeroRedundancyOptimizer([torch.nn.Parameter(torch.zeros(n))], torch.optim.Adam, lr=0.1)

        agent = self.saved(o=made(3))
        self.assertIn("with parameters of shapes [[[3]]] on this rank; now it has [[[4]]]", self.refused(agent, o=made(4)))


class Refused(ClientCase):
    """Kinds that could never be restored are refused by name, before training."""

    def refusal(self, value):
        ck = self.attach(self.agent())
        with self.assertRaises(holdfast.TrackError) as e:
            ck.track(s=value)
        self.release(ck)
        return str(e.exception)

    def kind(self, name, module, *bases, **members):
        """An object of a class with that name."""
        return type(name, bases or (Holder,), dict(members, __module__=module))()

    def test_by_name(self):
        for name, module, says in (
            ("DeepSpeedZeroOptimizer_Stage3", "deepspeed.runtime.zero.stage3", "ZeRO stage 3"),
            ("ZeROOptimizer", "deepspeed.runtime.base_optimizer", "DeepSpeed's ZeRO, which loads"),
            ("DistributedOptimizer", "megatron.core.optimizer.distrib_optimizer", "Megatron's DistributedOptimizer"),
        ):
            with self.subTest(name):
                one = self.kind(name, module)
                self.assertIn(says, self.refusal(one))
                self.assertIn("s['o'] is or holds", self.refusal({"o": one}))
                chain = Holder()
                chain.zero_grad, chain.chained_optimizers = None, [one]
                self.assertIn(says, self.refusal(chain))
                ours = self.kind(name, "my.own")
                ck = self.attach(self.agent())
                ck.track(s=ours)
                self.release(ck)

    def test_a_scheduler_of_a_refused_optimizer_is_kept(self):
        scheduler = Holder()
        scheduler.optimizer = self.kind("DistributedOptimizer", "megatron.core.optimizer.distrib_optimizer")
        ck = self.attach(self.agent())
        ck.track(s=scheduler)
        self.assertTrue(ck.save(1))

    def test_without_an_arena_nothing_is_refused(self):
        ck = self.attach()
        ck.track(s=self.kind("DistributedOptimizer", "megatron.core.optimizer.distrib_optimizer"))
        self.assertEqual(ck.restore(), 0)

    @unittest.skipIf(torch is None, "TORCH IS MISSING")
    def test_parameters_that_are_taken_apart(self):
        model = torch.nn.Linear(2, 2)
        model.bias.ds_id = 3
        self.assertIn("DeepSpeed's ZeRO stage 3 has taken apart", self.refusal(model))
        del model.bias.ds_id
        model.weight._is_flat_param = True
        self.assertIn("FSDP1", self.refusal(torch.optim.SGD(model.parameters(), lr=0.1)))

    @unittest.skipIf(torch is None, "TORCH IS MISSING")
    def test_fsdp1(self):
        from torch.distributed.fsdp import FullyShardedDataParallel

        inner = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
        torch.nn.Module.__init__(inner)
        self.assertIn("fully_shard", self.refusal(torch.nn.ModuleList([inner])))


if __name__ == "__main__":
    unittest.main()
