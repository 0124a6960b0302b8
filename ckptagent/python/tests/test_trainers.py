"""Hooks for trainers, without a framework: DeepSpeed's engine is a fake. test/launchers has the real ones."""

import sys
import types
import unittest
from unittest import mock

import holdfast.deepspeed
from holdfast._trainers import Log

from .case import ClientCase

try:
    import torch
except ImportError:
    torch = None


class Logs(unittest.TestCase):
    def test_a_log_is_read_back_as_it_grew_and_when_another_takes_its_place(self):
        log, entries = Log(), [{"loss": 0.1, "step": 1}]
        self.assertEqual(Log.read(log.lines(entries)), entries)
        entries.append({"loss": 0.2, "step": 2})
        self.assertEqual(Log.read(log.lines(entries)), entries)
        self.assertEqual(Log.read(log.lines([{"a": 1}])), [{"a": 1}])
        self.assertEqual(Log.read(log.lines([])), [])


@unittest.skipIf(torch is None, "TORCH IS MISSING")
class DeepSpeed(ClientCase):
    def engine(self, stage=0, **unlike):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        class DeepSpeedEngine:
            module, lr_scheduler, has_moe_layers, torch_autocast_z0_gradscaler = model, torch.optim.lr_scheduler.StepLR(optimizer, 2), False, None
            global_steps = global_samples = micro_steps = skipped_steps = 0

            def zero_optimization_stage(self):
                return stage

            def gradient_accumulation_steps(self):
                return 2

            def random_ltd_enabled(self):
                return False

            def curriculum_learning_enabled(self):
                return False

        e = DeepSpeedEngine()
        e.optimizer = optimizer
        for name, value in unlike.items():
            setattr(e, name, value)
        return e

    def train(self, e):
        e.optimizer.zero_grad()
        e.module(torch.ones(1, 3)).sum().backward()
        e.optimizer.step()
        e.lr_scheduler.step()
        e.global_steps, e.micro_steps, e.global_samples = e.global_steps + 1, e.micro_steps + 2, e.global_samples + 8

    def tracked(self, agent, engine):
        ck = self.attach(agent)
        ck.track(engine=self.wrapped(ck, engine, "0.19.8"))
        return ck

    def wrapped(self, ck, engine, version):
        with mock.patch.object(holdfast._client, "_attached", ck), mock.patch.dict(sys.modules, deepspeed=types.SimpleNamespace(__version__=version)):
            return holdfast.deepspeed.Engine(engine)

    def test_an_engine_comes_back_whole(self):
        agent, e = self.agent(), self.engine()
        ck = self.tracked(agent, e)
        ck.restore()
        for step in (1, 2, 3):
            self.train(e)
        self.assertTrue(ck.save(3))
        self.assertEqual(agent.seal(), 3)
        agent, other = self.next_generation(ck, agent, 3), self.engine()
        ck = self.tracked(agent, other)
        self.assertEqual(ck.restore(), 3)
        self.assertEqual((other.global_steps, other.micro_steps, other.global_samples), (3, 6, 24))
        for one in (e, other):
            self.train(one)
        self.assertTrue(torch.equal(e.module.weight, other.module.weight))
        self.assertEqual(e.optimizer.param_groups[0]["lr"], other.optimizer.param_groups[0]["lr"])

    def test_half_a_step_is_not_kept_and_is_said(self):
        agent, e = self.agent(), self.engine()
        ck = self.tracked(agent, e)
        ck.restore()
        e.micro_steps = 1
        with self.quiet() as said:
            self.assertFalse(ck.save(1))
        self.assertIn("accumulated gradients are not kept: save after the micro batch that ends a step", said.getvalue())

    def test_another_split_is_refused_when_restored(self):
        agent, e = self.agent(), self.engine()
        ck = self.tracked(agent, e)
        ck.restore()
        self.assertTrue(ck.save(1))
        agent.seal()
        agent = self.next_generation(ck, agent, 1)
        zero = type("DeepSpeedZeroOptimizer", (), {"elastic_checkpoint": False, "cpu_offload": False, "dp_process_group": None, "single_partition_of_fp32_groups": [torch.zeros(4)]})()
        ck = self.tracked(agent, self.engine(stage=1, optimizer=zero))
        with mock.patch.object(torch.distributed, "get_rank", lambda group: 1), mock.patch.object(torch.distributed, "get_world_size", lambda group: 2):
            with self.assertRaisesRegex(holdfast.RestoreError, r"saved with ZeRO stage 0, rank 0 of 1, holding \[\] numbers, and now has 1, 1 of 2, \[4\]: start with"):
                ck.restore()

    def test_what_it_cannot_keep_is_refused_by_name(self):
        elastic, offloaded = type("DeepSpeedZeroOptimizer", (), {})(), type("DeepSpeedZeroOptimizer", (), {})()
        elastic.elastic_checkpoint, elastic.cpu_offload = True, False
        offloaded.elastic_checkpoint, offloaded.cpu_offload = False, True
        ck = self.attach(self.agent())
        for engine, version, text in (
            (torch.nn.Linear(1, 1), "0.19.8", "takes what deepspeed.initialize returns first, not a Linear"),
            (self.engine(), "0.20.1", "knows deepspeed 0.19, not 0.20.1: install deepspeed 0.19"),
            (self.engine(has_moe_layers=True), "0.19.8", "MoE"),
            (self.engine(stage=3), "0.19.8", "does not keep ZeRO stage 3: use stage 2"),
            (self.engine(stage=1, optimizer=elastic), "0.19.8", "elastic checkpoints: set zero_optimization.elastic_checkpoint to false"),
            (self.engine(stage=2, optimizer=offloaded), "0.19.8", "offloaded: take zero_optimization.offload_optimizer out"),
            (self.engine(optimizer=type("BF16_Optimizer", (), {})()), "0.19.8", "does not keep a BF16_Optimizer: use ZeRO stage 1 or 2"),
            (self.engine(random_ltd_enabled=lambda: True), "0.19.8", "data efficiency: set data_efficiency.enabled to false"),
            (self.engine(torch_autocast_z0_gradscaler=object()), "0.19.8", "scaler of torch_autocast"),
        ):  # fmt: skip
            with self.subTest(text=text):
                with self.assertRaises(holdfast.TrackError) as refused:
                    self.wrapped(ck, engine, version)
                self.assertIn(text, str(refused.exception))

    def test_without_an_agent_any_engine_is_taken(self):
        ck = self.tracked(None, self.engine(stage=3))
        self.assertEqual(ck.restore(), 0)
        self.assertFalse(ck.save(1))
        self.assertEqual(self.said.getvalue(), "")
