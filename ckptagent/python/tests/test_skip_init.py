"""Tests models that are built without initial values, because restore overwrites them."""

import unittest
import unittest.mock
import weakref

try:
    import torch
except ImportError:
    torch = None

import holdfast

from .case import ClientCase

if torch is not None:

    class Model(torch.nn.Module):
        """A model with parameters of several initializations, a buffer in the state and one that is not."""

        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.embed = torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300), torch.nn.Embedding(7, 300)
            self.own = torch.nn.Parameter(torch.empty(300, 300))
            torch.nn.init.xavier_uniform_(tensor=self.own)
            self.direct = torch.nn.Parameter(torch.empty(3))
            torch.nn.init.ones_(self.direct.data)
            self.register_buffer("table", torch.nn.init.normal_(torch.empty(5)), persistent=False)
            self.head = torch.nn.Linear(300, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.norm(self.linear(x) @ self.own)) * self.direct[0] + self.table[0]


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class SkipInit(ClientCase):
    def begin(self, agent, seed, track=True):
        """A process as a script would run it: the client, and what it has built and drawn by then."""
        torch.manual_seed(seed)
        ck = self.attach(agent)
        with ck.skip_init():
            model = Model()
        drawn = torch.rand(3).tolist()
        with ck.skip_init():
            other = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        if track:
            ck.track(model=model, other=other, optimizer=optimizer)
        return ck, model, other, optimizer, drawn + torch.rand(2).tolist()

    def train(self, model, optimizer, step):
        x = torch.randn(4, 300, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def saved(self, step=1):
        """The losses of two steps, of which the first is saved."""
        agent = self.agent(state_bytes=8 << 20)
        ck, model, _, optimizer, drawn = self.begin(agent, 1)
        self.assertEqual((ck.restore(), ck._left), (0, []))
        losses = [self.train(model, optimizer, 1)]
        self.assertTrue(ck.save(step))
        agent.seal()
        losses.append(self.train(model, optimizer, 2))
        return ck, agent, drawn, losses

    def test_bit_for_bit_over_several_restarts(self):
        ck, agent, drawn, losses = self.saved()
        for seed in (2, 3):
            agent = self.next_generation(ck, agent, seed - 1)
            with unittest.mock.patch.object(torch.Tensor, "uniform_", side_effect=AssertionError("initialized")):
                ck, model, other, optimizer, again = self.begin(agent, seed)
            self.assertEqual(again, drawn)
            self.assertEqual(model.direct.tolist(), [1.0] * 3)  # its parameter is not what was initialized
            self.assertGreater(len(ck._left), 7)
            self.assertEqual(ck.restore(), seed - 1)
            self.assertEqual(self.train(model, optimizer, seed), losses[-1])
            self.assertTrue(ck.save(seed))
            agent.seal()
            losses.append(self.train(model, optimizer, seed + 1))

    def test_an_untracked_model_is_an_error(self):
        ck, agent, _, _ = self.saved()
        agent = self.next_generation(ck, agent, 1)
        ck, model, other, optimizer, _ = self.begin(agent, 1, track=False)
        ck.track(model=model, optimizer=optimizer)
        with self.quiet(), self.assertRaisesRegex(holdfast.RestoreError, r"2 parameters have no values, the first one of shape \[2, 2\].*track the module, or create it outside"):
            ck.restore()

    def test_a_model_within_an_object_of_the_script(self):
        class Trainer:
            def __init__(self):
                self.parts = {"model": [torch.nn.Linear(2, 2)]}
                self.again, self.many = self, list(range(100_000))

            def state_dict(self):
                return self.parts["model"][0].state_dict()

            def load_state_dict(self, state):
                self.parts["model"][0].load_state_dict(state)

        def begin(agent):
            ck = self.attach(agent)
            with ck.skip_init():
                trainer, other = Trainer(), torch.nn.Linear(3, 3)
            ck.track(trainer=trainer)
            return ck, trainer, other

        agent = self.agent(state_bytes=1 << 20)
        ck, first, _ = begin(agent)
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck, trainer, other = begin(agent)
        self.assertEqual(len(ck._left), 4)
        with self.quiet(), self.assertRaisesRegex(holdfast.RestoreError, r"2 parameters have no values, the first one of shape \[3, 3\]"):
            ck.restore()
        del other
        self.assertEqual(ck.restore(), 1)
        self.assertTrue(torch.equal(trainer.parts["model"][0].weight, first.parts["model"][0].weight))

    def test_a_script_that_begins_to_keep_random_states(self):
        ck, agent, _, _ = self.saved()
        agent = self.next_generation(ck, agent, 1)
        ck, model, other, optimizer, _ = self.begin(agent, 1)
        before = model.embed.weight.clone()
        ck.track(rng=True)
        with self.quiet(), self.assertRaisesRegex(holdfast.RestoreError, "it holds no __rng__"):
            ck.restore()
        self.assertEqual(model.embed.weight.view(torch.int32).tolist(), before.view(torch.int32).tolist())

    def test_a_generator_of_the_script_advances(self):
        def build(ck):
            generator = torch.Generator().manual_seed(1)
            with ck.skip_init():
                at, named = (torch.nn.Parameter(torch.empty(2)) for _ in range(2))
                torch.nn.init.normal_(at, 0, 1, generator)
                torch.nn.init.normal_(named, generator=generator)
            ck.track(at=at, named=named)
            return at.tolist() + named.tolist(), generator.get_state()

        agent = self.agent(state_bytes=1 << 20)
        ck = self.attach(agent)
        values, state = build(ck)
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        again, their = build(self.attach(agent))
        self.assertEqual(again, values)
        self.assertTrue(torch.equal(their, state))

    def test_a_parameter_that_another_replaced_and_a_block_that_the_saved_process_did_not_have(self):
        ck, agent, _, _ = self.saved()
        agent = self.next_generation(ck, agent, 1)
        ck, model, other, optimizer, _ = self.begin(agent, 1)
        with ck.skip_init():
            extra = torch.nn.Linear(2, 2)
        self.assertTrue(extra.weight.abs().sum() > 0)  # the saved process had no such block
        loop = [torch.nn.Parameter(torch.empty(1))]
        loop.append(loop)
        ck._left.append(weakref.ref(loop[0]))
        del loop
        self.assertEqual(ck.restore(), 1)

    def test_where_nothing_is_restored_all_is_initialized(self):
        for agent in (None, self.agent(state_bytes=8 << 20)):
            ck, model, _, _, drawn = self.begin(agent, 1)
            self.assertEqual(ck._left, [])
            torch.manual_seed(1)
            plain = Model()
            for a, b in zip(model.parameters(), plain.parameters()):
                self.assertTrue(torch.equal(a, b))
            self.assertEqual(torch.rand(3).tolist(), drawn[:3])
            self.release(ck)

    def test_a_step_of_a_script_without_blocks(self):
        agent = self.agent(state_bytes=8 << 20)
        ck, model = self.attach(agent), Model()
        ck.track(model=model, rng=True)
        ck.save(1)
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        with ck.skip_init():
            model = Model()
        self.assertEqual(ck._left, [])
        ck.track(model=model)
        self.assertEqual(ck.restore(), 1)

    def test_a_model_that_draws_between_many_of_its_parameters_is_initialized(self):
        def build(ck):
            torch.manual_seed(1)
            with ck.skip_init():
                return torch.nn.ParameterList(torch.nn.Parameter(torch.nn.init.normal_(torch.nn.Parameter(torch.empty(2))) * torch.rand(1)) for _ in range(70))

        agent = self.agent(state_bytes=1 << 20)
        ck = self.attach(agent)
        first = build(ck)
        ck.track(model=first)
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        ck = self.attach(agent)
        for a, b in zip(first, build(ck)):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(ck._left, [])

    def test_an_error_in_the_block_leaves_torch_as_it_was(self):
        ck, agent, _, _ = self.saved()
        agent = self.next_generation(ck, agent, 1)
        ck, theirs = self.attach(agent), torch.nn.init.normal_
        with self.assertRaises(KeyError), ck.skip_init():
            self.assertIsNot(torch.nn.init.normal_, theirs)
            raise KeyError
        self.assertIs(torch.nn.init.normal_, theirs)
