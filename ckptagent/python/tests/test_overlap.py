"""Tests copies made while training goes on, from a fake device: a torn copy is never announced to the agent."""

import contextlib
import copy
import ctypes
import os
import signal
import sys
import threading
import time
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None

from holdfast import _overlap, _watch

if torch is not None:
    from .overlapping import DeviceCase, Net
else:
    DeviceCase = unittest.TestCase
    print("TORCH IS MISSING: copies beside training are not tested here", file=sys.stderr)

LEAVES = frozenset({1, 2})


class Trusts(unittest.TestCase):
    """The comparisons that a layout needs, without any copy."""

    def run_through(self, trust, n, equal=True, leaves=LEAVES):
        modes = []
        for _ in range(n):
            mode = trust.mode(leaves)
            modes.append(mode)
            if mode != _overlap.BLOCK:
                trust.judge(leaves, equal, mode == _overlap.PROOF)
        return modes

    def test_a_proof_comes_first_and_is_repeated(self):
        modes = self.run_through(_overlap.Trust(), 1 + 3 * _overlap.PROOF_EVERY)
        for i, mode in enumerate(modes):
            self.assertEqual(mode, _overlap.PROOF if i % _overlap.PROOF_EVERY == 0 else _overlap.OVERLAP, i)

    def test_nothing_to_overlap_blocks(self):
        self.assertEqual(_overlap.Trust().mode(frozenset()), _overlap.BLOCK)

    def test_leaves_that_are_new_are_proven(self):
        trust = _overlap.Trust()
        self.run_through(trust, 3)
        self.assertEqual(trust.mode(LEAVES | {3}), _overlap.PROOF)
        self.assertEqual(trust.mode(frozenset({1})), _overlap.OVERLAP)

    def test_after_an_unequal_comparison_comes_a_proof(self):
        trust = _overlap.Trust()
        self.run_through(trust, 3)
        trust.judge(LEAVES, False, proof=False)
        self.assertEqual((trust.mode(LEAVES), trust.reason), (_overlap.PROOF, 0))
        trust.judge(LEAVES, True, proof=True)
        self.assertEqual(trust.mode(LEAVES), _overlap.OVERLAP)

    def test_two_in_a_row_block(self):
        for first_is_proof in (True, False):
            trust = _overlap.Trust()
            self.run_through(trust, 2)
            trust.judge(LEAVES, False, first_is_proof)
            trust.judge(LEAVES, False, proof=True)
            self.assertEqual((trust.mode(LEAVES), trust.reason), (_overlap.BLOCK, _watch.UNEQUAL))

    def test_so_do_a_few_that_are_not_in_a_row(self):
        trust = _overlap.Trust()
        for _ in range(_overlap.MOST_UNEQUAL):
            self.assertNotEqual(trust.mode(LEAVES), _overlap.BLOCK)
            trust.judge(LEAVES, True, proof=True)
            trust.judge(LEAVES, False, proof=False)
        self.assertEqual(trust.mode(LEAVES), _overlap.BLOCK)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Overlapping(DeviceCase):
    def test_begins_after_three_hooks_and_a_proof(self):
        self.begin()
        for want in (0, 0, 0, 0, 1, 2):  # hooks count from the first save on, the fourth is the proof
            self.train()
            self.land()
            self.assertEqual(self.seal(), self.at)
            self.assertEqual(self.record().overlapped, want)
        self.assertEqual((self.torn, self.record().saves, self.record().blocking), ([], 6, 0))

    def test_what_is_restored_is_the_state_as_save_returned(self):
        self.begin().overlapping()
        self.save()
        self.step()  # its hook waits for the copy
        self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.torn, self.record().dropped), ([], 0))
        self.assertGreaterEqual(self.record().overlapped, 2)

    def test_only_what_an_optimizer_owns_is_left_to_be_copied(self):
        average = {"w": torch.zeros(1 << 19), "part": None}
        self.begin(average=average)
        average["part"] = self.net.a.weight.detach()[100:]  # a view of an optimizer's tensor
        self.overlapping()
        copies = self.sides[0].copies
        saved = self.save()
        self.assertTrue(saved)
        self.assertFalse(saved.sealed)
        average["w"].fill_(7)
        self.net.norm.running_mean.fill_(7)
        self.land()
        self.assertGreater(self.sides[0].copies, copies)
        self.assertEqual((self.seal(), self.torn), (self.at, []))
        self.assertTrue(saved.sealed)

    def test_tied_weights(self):
        net = torch.nn.ModuleDict({"a": torch.nn.Linear(512, 512, bias=False), "b": torch.nn.Linear(512, 512, bias=False)})
        net["b"].weight = net["a"].weight
        self.begin(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        self.backward = lambda: net["b"](net["a"](torch.randn(2, 512))).sum().backward()
        self.overlapping()
        self.save()
        self.step()
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_a_hook_waits_for_the_copy(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        self.backward()
        before = self.net.a.weight.detach().clone()
        step = threading.Thread(target=self.optimizer.step)
        step.start()
        step.join(0.1)
        self.assertTrue(step.is_alive() and torch.equal(self.net.a.weight, before))
        self.go()
        step.join(10)
        self.assertFalse(torch.equal(self.net.a.weight, before))
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_the_record_names_a_copy_until_it_is_announced(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        client = self.fake.client()
        self.assertEqual((client.overlap_step, client.overlap_grant, client.step), (self.at, self.fake.grant, self.at))
        self.assertLess(client.grant, self.fake.grant)
        self.assertIsNone(self.seal())
        self.go()
        self.land()
        client = self.fake.client()
        self.assertEqual((client.overlap_step, client.overlap_grant, client.grant), (0, 0, self.fake.grant))

    def test_blocking_and_the_switch(self):
        self.begin().overlapping()
        before = self.record().overlapped
        self.assertTrue(self.save(blocking=True))
        self.assertEqual((self.seal(), self.record().overlapped), (self.at, before))
        self.begin(environment={"HOLDFAST_OVERLAP": "0"})
        for _ in range(8):
            self.train()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.record().overlapped, self.record().blocking, self.record().reason), (0, 0, 0))

    def test_at_a_barrier_save_copies_all(self):
        self.begin().overlapping()
        before, self.fake.barrier_step = self.record().overlapped, self.at + 1
        self.fake.publish()
        lift = threading.Timer(0.2, self.lift)
        lift.start()
        self.save()  # save waits: the agent holds it
        self.assertEqual((lift.finished.is_set(), self.record().overlapped), (True, before))
        self.assertEqual(self.seal(), self.at)

    def lift(self):
        self.fake.barrier_step = 0
        self.fake.publish()

    def test_a_barrier_that_is_raised_later_holds_in_the_hook(self):
        self.begin().overlapping()
        self.save()
        self.fake.barrier_step = self.at
        self.fake.publish()
        self.backward()
        weight = self.net.a.weight.detach().clone()
        held = []

        def lift():
            held.append(torch.equal(self.net.a.weight, weight))
            self.lift()

        threading.Timer(0.2, lift).start()
        self.optimizer.step()
        self.assertEqual(held, [True])
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_an_optimizer_that_cannot_be_read(self):
        self.begin().overlapping()
        before = self.record().overlapped
        with mock.patch.object(_watch, "_tensors", side_effect=AttributeError("no")), contextlib.redirect_stderr(self.said):
            self.assertTrue(self.save())
        self.assertEqual(self.seal(), self.at)
        self.train()
        self.assertEqual((self.seal(), self.torn, self.record().overlapped), (self.at, [], before))
        self.assertEqual(self.said.getvalue().count("copied inside save from now on"), 1)

    def test_a_hook_that_fails(self):
        """The step goes on without a wait; the copy made meanwhile is detected as torn."""
        self.begin().overlapping()
        other = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(lambda *_: None)  # runs after Holdfast's hook
        self.addCleanup(other.remove)
        self.hold()
        self.save()
        with mock.patch.object(_overlap.Overlap, "_land", side_effect=RuntimeError("no")), contextlib.redirect_stderr(self.said):
            self.step()
        self.go()
        self.land()
        self.assertIsNone(self.seal())
        self.train()
        self.assertEqual((self.seal(), self.torn), (self.at, []))
        self.assertEqual(self.said.getvalue().count("copied inside save from now on"), 1)

    def test_a_fork_while_a_copy_is_under_way(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.optimizer.step()  # the hook does not wait here
                self.ck._overlap.settle()
                code = 0 if not self.ck.save(99) else 2
            finally:
                os._exit(code)
        deadline = time.monotonic() + 30
        status = (0, 0)
        while status[0] == 0 and time.monotonic() < deadline:
            status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if status[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.assertEqual(status, (child, 0))
        self.go()
        self.land()
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_layouts_that_take_turns_keep_what_was_found(self):
        extra = {"more": 0}
        self.begin(extra=extra)
        writer = lambda: self.net.a.weight.data.mul_(0.5)
        for i in range(30):
            extra["t"] = torch.zeros(1 + i % 2)
            self.train(between=writer)
            self.land()
            self.seal()
        self.assertEqual((self.record().blocking, self.record().reason, self.torn), (2, _watch.UNEQUAL, []))
        self.assertEqual(self.record().overlapped, 0)


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Adversaries(DeviceCase):
    """Writers that change the source between save and the next step, before it is copied."""

    def meet(self, write, **begin):
        """A new writer: detected in the first save that it changes."""
        self.begin(**begin).overlapping()
        before = self.record()
        self.hold()
        saved = self.save()
        write()
        with contextlib.redirect_stderr(self.said):
            self.go()
            self.step()
        self.assertIn("step %d is not kept" % self.at, self.said.getvalue())
        self.assertIsNone(self.seal())
        self.assertFalse(saved or saved.sealed)
        self.assertIn("changed", saved.reason)
        self.assertEqual((self.record().dropped, self.record().saves), (before.dropped + 1, before.saves))
        self.assertEqual((self.record().overlap_step, self.record().overlap_grant), (0, 0))
        # The next save is a proof: good, whatever its comparison shows.
        self.assertTrue(self.save())
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def persist(self, write):
        """A writer present from the beginning: nothing ever overlaps, and each save is good."""
        self.begin()
        for _ in range(7):
            self.train(between=write)
            self.assertEqual(self.seal(), self.at)
        self.step()
        self.assertEqual((self.torn, self.record().overlapped, self.record().blocking, self.record().reason), ([], 0, 1, _watch.UNEQUAL))

    def test_writers(self):
        def clamps():
            with torch.no_grad():
                self.net.a.weight.clamp_(-1e-3, 1e-3).add_(1)

        def replays():
            """Writes as a graph does: kernels write to the same addresses without torch's knowledge."""
            for state in self.optimizer.state.values():
                new = torch.randn(state["exp_avg"].shape)
                ctypes.memmove(state["exp_avg"].data_ptr(), new.data_ptr(), new.nbytes)

        def adds():
            self.net.a.weight.data[511, 3] += 1

        for write in (clamps, replays, adds):
            with self.subTest(write.__name__):
                self.meet(write)
                self.persist(write)

    def test_load_state_dict_of_the_module(self):
        other = {k: torch.zeros_like(v) for k, v in copy.deepcopy(self.begin().net.state_dict()).items()}
        self.meet(lambda: self.net.load_state_dict(other))

    def test_load_state_dict_of_the_optimizer(self):
        """It replaces its tensors: the copy has the old ones, unchanged."""
        self.begin().overlapping()
        self.hold()
        self.save()
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        self.optimizer.state[self.net.a.weight]["exp_avg"].fill_(1)
        self.go()
        self.step()
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_a_parameter_that_gets_other_memory(self):
        self.begin().overlapping()
        self.hold()
        self.save()
        for p in self.net.parameters():
            p.data = torch.zeros_like(p)
        self.go()
        self.step()
        self.assertEqual((self.seal(), self.torn), (self.at, []))

    def test_memory_that_is_let_go_of_is_not_the_same(self):
        pair = _overlap.Pair(torch.zeros(1 << 18), torch.zeros(1 << 18))
        self.assertTrue(pair.same())
        pair.source.untyped_storage().resize_(0)
        self.assertFalse(pair.same())

    def test_batch_norm(self):
        """Its buffers change in forward, so they are copied inside save."""
        net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
        for name in ("running_mean", "running_var"):
            self.assertEqual(getattr(net[1], name).nbytes, 2048)
        big = torch.nn.BatchNorm1d(1 << 18)  # 1 MiB each
        wider = torch.nn.Unflatten(1, (1, 512)), torch.nn.Upsample(scale_factor=512), torch.nn.Flatten()
        net = torch.nn.Sequential(*net, *wider, big)
        self.begin(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)).overlapping()
        self.save()
        before = big.running_mean.clone()
        self.backward()
        self.assertFalse(torch.equal(before, big.running_mean))
        self.optimizer.step()
        self.assertEqual((self.seal(), self.torn, self.record().dropped), (self.at, [], 0))

    def test_a_step_whose_hook_is_gone(self):
        """As if an optimizer were compiled as a whole from some step on."""
        self.begin().overlapping()
        bare = type(self.optimizer).step.__wrapped__
        self.hold()
        saved = self.save()
        self.backward()
        bare(self.optimizer)
        self.go()
        self.land()
        self.assertIsNone(self.seal())
        self.assertFalse(saved)
        for _ in range(5):
            self.backward()
            bare(self.optimizer)
            self.save()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.torn, self.record().blocking, self.record().reason), ([], 1, _watch.NO_HOOK))


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Loops(DeviceCase):
    """Usual loops, in which only the optimizer writes: saves overlap, and none is dropped."""

    def overlaps(self, steps=8):
        for _ in range(steps):
            self.train()
            self.land()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.record().dropped, self.record().blocking, self.torn), (0, 0, []))
        self.assertGreaterEqual(self.record().overlapped, steps - 4)

    def group(self):
        store = torch.distributed.FileStore(os.path.join(self.folder, "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_optimizers_of_torch(self):
        kinds = {
            "for each": lambda p: torch.optim.AdamW(p, foreach=True),
            "fused": lambda p: torch.optim.AdamW(p, fused=True),
            "one by one": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
            "RMSprop": lambda p: torch.optim.RMSprop(p),
        }
        for name, make in kinds.items():
            with self.subTest(name):
                net = torch.nn.Linear(512, 512)
                self.begin(net=net, optimizer=make(net.parameters()))
                self.overlaps()

    def test_two_optimizers(self):
        net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
        other = torch.optim.SGD(net[1].parameters(), lr=0.1, momentum=0.9)
        self.begin(net=net, optimizer=torch.optim.AdamW(net[0].parameters()), other=other)

        def step():
            self.backward()
            self.optimizer.step()
            other.step()
            other.zero_grad()

        self.step = step
        self.overlaps()

    def test_a_scaler_and_clipping(self):
        scaler = torch.amp.GradScaler("cpu")
        self.begin(scaler=scaler)

        def step():
            self.optimizer.zero_grad()
            scaler.scale(self.net(torch.randn(4, 512)).square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            scaler.step(self.optimizer)
            scaler.update()

        self.step = step
        self.overlaps()

    def test_a_compiled_model(self):
        self.begin()
        compiled = torch.compile(self.net, backend="eager")

        def step():
            self.optimizer.zero_grad()
            compiled(torch.randn(4, 512)).square().mean().backward()
            self.optimizer.step()

        self.step = step
        self.overlaps()

    def test_data_parallel_and_zero_1(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.group()
        for zero in (False, True):
            with self.subTest(zero=zero):
                net = torch.nn.parallel.DistributedDataParallel(Net())
                kind = torch.optim.AdamW
                optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=kind, lr=1e-3) if zero else kind(net.parameters())
                self.begin(net=net, optimizer=optimizer)
                if zero:  # its state_dict() would gather; test_sharded compares its saved state
                    del self.tracked["optimizer"]
                self.overlaps()

    def test_fully_shard(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.group()
        net, mesh = Net(), init_device_mesh("cpu", (1,))
        for part in (net.a, net.b, net):
            fully_shard(part, mesh=mesh)
        self.begin(net=net, optimizer=torch.optim.AdamW(net.parameters()))
        self.overlaps()


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class Blocking(DeviceCase):
    """Loops that never overlap and report why."""

    def blocks(self, reason, steps=7):
        for _ in range(steps):
            self.train()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.record().overlapped, self.record().blocking, self.record().reason, self.torn), (0, 1, reason, []))

    def test_a_closure(self):
        self.begin()

        def closure():
            self.optimizer.zero_grad()
            loss = self.net(torch.randn(4, 512)).square().mean()
            loss.backward()
            return loss

        self.step = lambda: self.optimizer.step(closure)
        self.blocks(_watch.CLOSURE)
        self.step = lambda: self.optimizer.step(closure=closure)
        self.blocks(_watch.CLOSURE)

    def test_an_optimizer_in_backward(self):
        net = torch.nn.Linear(512, 512)
        each = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()}

        def at_once(p):
            each[p].step()
            each[p].zero_grad()

        for p in each:
            p.register_post_accumulate_grad_hook(at_once)
        self.begin(net=net, optimizer=each[net.weight])
        self.step = lambda: net(torch.randn(4, 512)).sum().backward()
        self.blocks(_watch.IN_BACKWARD)

    def test_a_compiled_step(self):
        self.begin()
        step = torch.compile(self.optimizer.step, backend="eager")

        def train():
            self.backward()
            step()

        self.step = train
        self.blocks(_watch.NO_HOOK)  # the compiler removes the hook from a step compiled as a whole

    def test_a_step_that_is_called_by_what_is_compiled(self):
        self.begin()
        swap = torch._C._dynamo.eval_frame.set_eval_frame

        def train():
            self.backward()
            before = swap(False)  # as where the compiler has left the step to Python
            try:
                self.optimizer.step()
            finally:
                swap(before)

        self.step = train
        self.blocks(_watch.COMPILED)

    def test_a_step_compiled_in_a_function(self):
        self.begin()

        @torch.compile(backend="eager")
        def step():
            self.optimizer.step()

        def train():
            self.backward()
            step()

        self.step = train
        for _ in range(6):
            self.train()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.record().overlapped, self.torn), (0, []))
        self.assertIn(self.record().reason, (_watch.COMPILED, _watch.NO_HOOK))

    def test_capturable(self):
        net = torch.nn.Linear(512, 512)
        optimizer = torch.optim.Adam(net.parameters())
        self.begin(net=net, optimizer=optimizer)
        for group in optimizer.param_groups:
            group["capturable"] = True

        def step():
            self.backward()
            for p in net.parameters():
                p.data.add_(1)
            self.ck._overlap.watch.begins(optimizer, (optimizer,), {}, False, False)

        self.step = step
        self.blocks(_watch.COMPILED)

    def test_an_optimizer_that_is_not_torchs(self):
        net = torch.nn.Linear(512, 512)

        class Own:
            def __init__(self):
                self.moments = [torch.zeros_like(p) for p in net.parameters()]

            def zero_grad(self):
                net.zero_grad()

            def step(self):
                for p, m in zip(net.parameters(), self.moments):
                    p.data.sub_(m.mul_(0.9).add_(p.grad), alpha=0.1)

            def state_dict(self):
                return {"moments": self.moments}

            def load_state_dict(self, state):
                self.moments = state["moments"]

        self.begin(net=net, optimizer=Own())
        self.blocks(_watch.UNKNOWN)

    def test_an_optimizer_that_does_not_step(self):
        self.begin()
        self.step()
        self.step = lambda: None
        self.blocks(_watch.NO_HOOK)

    def test_without_an_optimizer_there_is_nothing_to_say(self):
        self.fake = self.agent(state_bytes=8 << 20)
        ck = self.attach(self.fake)
        ck.track(t={"t": torch.zeros(1 << 19)})
        for step in range(1, 7):
            self.assertTrue(ck.save(step))
            self.fake.seal()
        self.assertEqual((ck._record.blocking, ck._record.reason), (0, 0))

    def test_small_states_have_nothing_to_overlap(self):
        net = torch.nn.Linear(512, 128)
        self.begin(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(6):
            self.train()
            self.assertEqual(self.seal(), self.at)
        self.assertEqual((self.record().overlapped, self.record().blocking), (0, 0))


if __name__ == "__main__":
    unittest.main()
