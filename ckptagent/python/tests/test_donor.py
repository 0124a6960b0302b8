"""A rank that holds no state gets that of another one over the process group."""

import ast
import os
import pathlib
import random
import re
import types
import unittest
from unittest import mock

import holdfast
from holdfast import _arena, _donor, _rng, _sharded

from . import forked, ports
from .case import ClientCase, environment
from .fakeagent import FakeAgent
from .test_torch import torch

HERE = pathlib.Path(__file__).parent
STEP = re.compile(r"step (\d+): loss (\S+) of samples (.*)")


class Ranks(ClientCase):
    """Runs a script on ranks of which each has a folder of its own."""

    def ranks(self, script, *args, agents=(), world=None, **extra):
        """Output, standard error and exit code of each rank."""
        port = ports.kept()
        self.addCleanup(port.close)
        world, children = world or len(agents), []
        for rank in range(world):
            env = environment(
                RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port.getsockname()[1]),
                **(agents[rank].environment() if agents else {}), **extra,
            )  # fmt: skip
            files = [os.path.join(self.folder, "%s-%d" % (name, rank)) for name in ("out", "errors")]
            children.append((forked.start(HERE / script, map(str, args), env, *files), files))
        return [self.ended(*child) for child in children]

    def ended(self, child, files):
        child.join(300)
        if child.is_alive():
            child.kill()
            child.join()
        return (*(pathlib.Path(f).read_text() for f in files), child.exitcode)

    def agents_of(self, generation, step, *names):
        agents = []
        for name in names:
            folder = os.path.join(self.folder, name)
            os.makedirs(folder, exist_ok=True)
            agents.append(FakeAgent(folder, state_bytes=1 << 18, generation=generation, restore_step=step))
            agents[-1].open_grant()
            self.addCleanup(agents[-1].close)
        return agents

    def trains(self, kind, seed, last, agents, **extra):
        """What each rank printed; all must end well. Their last step is sealed."""
        ended = self.ranks("donor_script.py", kind, seed, last, agents=agents, **extra)
        for rank, (_, errors, code) in enumerate(ended):
            self.assertEqual(code, 0, "rank %d: %s" % (rank, errors[-3000:]))
        self.assertEqual([a.seal() for a in agents], [last] * len(agents))
        return ended

    def steps(self, ended):
        """step -> its loss, and the numbers of all samples, in order."""
        losses, samples = {}, {}
        for out, _, _ in ended:
            for step, loss, share in STEP.findall(out):
                self.assertEqual(losses.setdefault(int(step), float(loss)), float(loss))
                samples.setdefault(int(step), []).extend(ast.literal_eval(share))
        return losses, samples

    def begins(self, ended):
        """The digest of all tensors of each rank after the restore."""
        return [re.match(r"state of step \d+: (\w+)", out)[1] for out, _, _ in ended]

    def same_training(self, undisturbed, *parts):
        """Every step was done once, of the same samples, with the same loss."""
        losses, samples = self.steps(undisturbed)
        done = {}
        for ended in parts:
            own, of = self.steps(ended)
            self.assertFalse(done.keys() & own.keys(), "a step was done again")
            done.update(own)
            for step, numbers in of.items():
                self.assertEqual(numbers, samples[step], "samples of step %d" % step)
        self.assertEqual(done.keys(), losses.keys())
        for step, loss in losses.items():
            self.assertAlmostEqual(done[step], loss, delta=1e-6 * loss, msg="step %d" % step)
        self.assertGreater(len(set(losses.values())), len(losses) - 1, "steps are alike")


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class WholeStates(Ranks):
    def test_three_ranks_go_on_with_two_and_take_one_in(self):
        undisturbed = self.trains("ddp", 1, 6, self.agents_of(1, 0, "x", "y", "z"))
        agents = self.agents_of(1, 0, "a", "b", "c")
        first = self.trains("ddp", 1, 2, agents)
        for a in agents:
            self.assertEqual(a.client().span, 1)
            self.assertTrue(a.client().flags & _arena.FLAG_GROUPED)
        fewer = self.trains("ddp", 2, 4, self.agents_of(2, 2, "a", "c"))
        again = self.trains("ddp", 3, 6, self.agents_of(3, 4, "a", "new", "c"), HOLDFAST_DONOR="1")
        self.same_training(undisturbed, first, fewer, again)
        self.assertEqual(len(set(self.begins(again))), 1, "the state that was given differs from the donor's")
        ends = [out.splitlines()[-2] for out, _, _ in again]
        self.assertEqual(len(set(ends)), 1)
        said = [errors.count("rank 0 gave its state to this rank; the random states follow from this rank's seed") for _, errors, _ in again]
        self.assertEqual(said, [0, 1, 0])
        drawn = [out.splitlines()[-1] for out, _, _ in again]
        self.assertNotEqual(drawn[1], drawn[0])

    def test_bytes_that_changed_are_not_restored(self):
        self.trains("ddp", 1, 2, self.agents_of(1, 0, "a", "b"))
        agents = self.agents_of(2, 2, "a", "new")
        self.damage(agents[0])
        (_, _, given), (out, errors, code) = self.ranks("donor_script.py", "ddp", 2, 4, agents=agents, HOLDFAST_DONOR="1")
        self.assertNotEqual(code, 0)
        self.assertNotEqual(given, 0, "the donor went on alone")
        self.assertRegex(errors, r"RestoreError: restoring step 2: the \d+ bytes that rank 0 gave do not have the checksum with which its agent sealed them: nothing was restored")
        self.assertEqual(out, "the state is unchanged\n")


    def damage(self, agent):
        agent.flip(next(i for i in range(_arena.SLOTS) if agent.slot(i).state == _arena.SEALED), 4096 + 100)

    def test_another_rank_gives_what_arrived_damaged(self):
        self.trains("ddp", 1, 2, self.agents_of(1, 0, "a", "b", "c"))
        agents = self.agents_of(2, 2, "a", "new", "b", "c")
        self.damage(agents[0])
        self.damage(agents[2])
        again = self.trains("ddp", 2, 3, agents, HOLDFAST_DONOR="1")
        begins = self.begins(again)
        self.assertEqual(begins[1], begins[3], "the state that was given differs from that of the rank whose bytes were whole")
        said = again[1][1]
        self.assertRegex(said, r"the \d+ bytes that rank 0 gave do not have the checksum with which its agent sealed them: rank 2 gives its state instead")
        self.assertRegex(said, r"the \d+ bytes that rank 2 gave do not have the checksum with which its agent sealed them: rank 3 gives its state instead")
        self.assertIn("restoring step 2: rank 3 gave its state to this rank", said)

    def test_few_ranks_are_tried(self):
        self.trains("ddp", 1, 2, self.agents_of(1, 0, "a", "b", "c", "d"))
        agents = self.agents_of(2, 2, "a", "new", "b", "c", "d")
        for a in (agents[0], *agents[2:4]):
            self.damage(a)
        (out, errors, code) = self.ranks("donor_script.py", "ddp", 2, 4, agents=agents, HOLDFAST_DONOR="1")[1]
        self.assertNotEqual(code, 0)
        self.assertRegex(errors, r"RestoreError: restoring step 2: the \d+ bytes that rank 3 gave do not have the checksum with which its agent sealed them: nothing was restored; those of rank 0, 2 did not either")
        self.assertEqual(out, "the state is unchanged\n")

    def test_a_rank_of_another_pod_gives_next(self):
        for pods, holds, tried, want in (
            ([1, 1, 2, 2], [1, 1, 1, 1], [0], 2),
            ([1, 1, 2, 2], [1, 1, 0, 0], [0], 1),
            ([1, 1, 2, 2], [1, 1, 1, 1], [0, 2], 1),
            ([1, 2], [1, 0], [0], None),
        ):
            channel = types.SimpleNamespace(rank=0, all=lambda size, index, number: [p * h for p, h in zip(pods, holds)])
            self.assertEqual(_donor._another(channel, range(len(pods)), tried, True), want)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class DividedStates(Ranks):
    def test_pods_of_two_ranks_that_hold_half_each(self):
        self.halves("hsdp")

    def test_the_same_in_an_object_of_the_script(self):
        self.halves("trainer")

    def halves(self, kind):
        undisturbed = self.trains(kind, 1, 6, self.agents_of(1, 0, "w", "x", "y", "z"))
        agents = self.agents_of(1, 0, "a0", "a1", "b0", "b1")
        first = self.trains(kind, 1, 2, agents)
        self.assertEqual([a.client().span for a in agents], [2] * 4)
        fewer = self.trains(kind, 2, 4, self.agents_of(2, 2, "b0", "b1"))
        again = self.trains(kind, 3, 6, self.agents_of(3, 4, "new0", "new1", "b0", "b1"), HOLDFAST_DONOR="3")
        self.same_training(undisturbed, first, fewer, again)
        begins = self.begins(again)
        self.assertEqual(begins[:2], begins[2:], "the parts that were given differ from those of the donors")
        self.assertNotEqual(begins[0], begins[1])
        for rank, donor in ((0, 2), (1, 3)):
            self.assertIn("restoring step 4: rank %d gave its state to this rank" % donor, again[rank][1])
        for _, errors, _ in fewer + again[2:]:
            self.assertNotIn("gave its state", errors)

    def test_parts_that_are_left_in_different_pods(self):
        self.trains("hsdp", 1, 2, self.agents_of(1, 0, "a0", "a1", "b0", "b1"))
        again = self.trains("hsdp", 2, 4, self.agents_of(2, 2, "a0", "new1", "new0", "b1"), HOLDFAST_DONOR="1")
        begins = self.begins(again)
        self.assertEqual(begins[:2], begins[2:])
        for rank, donor in ((1, 3), (2, 0)):
            self.assertIn("restoring step 2: rank %d gave its state to this rank" % donor, again[rank][1])

    def test_a_part_that_no_rank_holds(self):
        self.trains("hsdp", 1, 2, self.agents_of(1, 0, "a0", "a1", "b0", "b1"))
        ended = self.ranks("donor_script.py", "hsdp", 2, 4, agents=self.agents_of(2, 2, "a0", "new1", "b0", "newer1"), HOLDFAST_DONOR="1")
        for rank in (1, 3):
            self.assertIn("RestoreError: restoring step 2: no rank holds the part of the state of rank %d" % rank, ended[rank][1])

    def test_what_is_divided_over_all_ranks_is_not_given(self):
        agents = self.agents_of(1, 0, "a", "b")
        self.trains("fsdp2", 1, 2, agents)
        self.assertEqual([a.client().span for a in agents], [_sharded.ALL] * 2)
        for _, errors, code in self.ranks("donor_script.py", "fsdp2", 2, 4, agents=self.agents_of(2, 2, "a", "new"), HOLDFAST_DONOR="1"):
            self.assertNotEqual(code, 0)
            self.assertIn("RestoreError: restoring step 2: the state is divided over all ranks, so none can give another one its part", errors)

    def test_the_span_of_shards_in_an_object_of_the_script(self):
        agents = self.agents_of(1, 0, "a", "b")
        self.trains("application", 1, 1, agents)
        self.assertEqual([a.client().span for a in agents], [_sharded.ALL] * 2)

    def test_span(self):
        every = _sharded.ALL
        want = {
            "ddp": 1, "replicated": 1, "hybrid": 2, "hybrid of 1": 1, "hybrid of 4": 4, "hybrid across": every, "hybrid swapped": every,
            "divided by the outer": every, "tensor parallel": 2, "tensor parallel across": every, "fsdp2": every,
            "fsdp2 and tensor parallel": every, "zero 1": every, "hybrid and ddp": 2, "hybrid and fsdp2": every,
            "application of ddp": 1, "application of replicated": 1, "application of fsdp2": every, "application of hybrid": 2,
            "hybrid and its application": 2, "hybrid and application of fsdp2": every, "trainer of hybrid": 2,
            "trainer of ddp beside fsdp2": 1, "trainer of fsdp2": every, "hidden ddp": 1, "hidden hybrid": every,
        }  # fmt: skip
        for rank, (out, errors, code) in enumerate(self.ranks("span_script.py", world=4)):
            self.assertEqual(code, 0, errors[-3000:])
            seen = {name: (saved, restored) for name, saved, restored in re.findall(r"(.+): (\d+), (\d+)", out)}
            self.assertEqual({name: saved for name, (saved, _) in seen.items()}, {name: str(n) for name, n in want.items()}, "rank %d" % rank)
            differ = [name for name, (saved, restored) in seen.items() if saved != restored]
            self.assertEqual(differ, ["hidden hybrid"], "a rank without state needs another part")
            self.assertEqual(out.count("the state of s is divided over ranks, and only its state_dict() shows how"), 1)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class WithoutGroup(ClientCase):
    def test_the_remedy_is_said(self):
        agent = FakeAgent(self.folder, restore_step=2)
        self.addCleanup(agent.close)
        ck = self.attach(environment={**agent.environment(), "HOLDFAST_DONOR": "1"})
        ck.track(w=torch.zeros(2))
        with self.assertRaisesRegex(holdfast.RestoreError, r"call init_process_group\(\) before restore\(\)"):
            ck.restore()

    def test_span(self):
        self.assertEqual(_donor.span({"w": torch.zeros(2), "d": {"l": [torch.nn.Linear(2, 2)]}}), 1)
        self.assertFalse(_donor.grouped())

    def test_random_states_follow_from_seed_rank_and_step(self):
        def drawn(seed, rank, step):
            torch.manual_seed(seed)
            torch.rand(3)  # what was drawn before does not count
            _rng.derive(rank, step)
            return torch.rand(1).item(), random.random()

        one = drawn(1, "3", 10)
        self.assertEqual(drawn(1, "3", 10), one)
        for other in ((2, "3", 10), (1, "4", 10), (1, "3", 11)):
            torch_drawn, python_drawn = drawn(*other)
            self.assertNotEqual(torch_drawn, one[0])
            self.assertNotEqual(python_drawn, one[1])


class Device(unittest.TestCase):
    """The device of a process group, without one."""

    def device(self, backends, bound=None, current=0, count=8, local="3"):
        group = types.SimpleNamespace(bound_device_id=bound)
        dist = types.SimpleNamespace(get_backend_config=lambda: backends, distributed_c10d=types.SimpleNamespace(_get_default_group=lambda: group))
        here = types.SimpleNamespace(current_device=lambda: current, device_count=lambda: count)
        made = types.SimpleNamespace(cuda=here, xpu=here, device=lambda kind, index=None: (kind, index))
        with mock.patch.dict(os.environ, {"LOCAL_RANK": local}):
            return _donor.device(dist, made)

    def test_where_tensors_are_sent(self):
        bound = types.SimpleNamespace(type="cuda", index=5)
        self.assertEqual(self.device("cpu:gloo,cuda:gloo", bound), ("cpu", None))
        self.assertIs(self.device("cuda:nccl", bound), bound)
        for name, got, want in (
            ("the local rank's", self.device("cuda:nccl"), ("cuda", 3)),
            ("another kind", self.device("xpu:xccl"), ("xpu", 3)),
            ("beside gloo", self.device("cpu:gloo,cuda:nccl"), ("cuda", 3)),
            ("set by the script", self.device("cuda:nccl", current=6), ("cuda", 6)),
            ("the only one that is visible", self.device("cuda:nccl", count=1), ("cuda", 0)),
            ("no launcher", self.device("cuda:nccl", local=""), ("cuda", 0)),
        ):
            self.assertEqual(got, want, name)

    def test_a_group_ends_after_its_broadcasts(self):
        calls = mock.Mock()
        for kind in ("cuda", "cpu"):
            _donor._end(calls.dist, calls.torch, types.SimpleNamespace(type=kind), "group")
        self.assertEqual([c[0] for c in calls.mock_calls], ["torch.cuda.synchronize", "dist.destroy_process_group", "dist.destroy_process_group"])


if __name__ == "__main__":
    unittest.main()
