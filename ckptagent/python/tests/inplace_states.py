"""Rank data with states of all kinds, as ranks with torch save them, for tests of reading in place."""

import array
import collections
import json
import os
import random
import subprocess
import sys
import threading

import numpy as np
import torch

from holdfast import _arena as A

from .case import ClientCase, environment
from .fakeagent import FakeAgent
from .test_export import script, sealed_data

HERE = os.path.dirname(os.path.abspath(__file__))


def agents(folder, world):
    os.makedirs(folder)
    made = [FakeAgent(folder, rank=r, state_bytes=1 << 19) for r in range(world)]
    for a in made:
        a.open_grant()
    return made


def trained(folder):
    """FSDP2, tensor parallel, both, DDP and ZeRO-1 on four ranks."""
    ranks = agents(folder, 4)
    script("export_train.py", "2", os.path.join(folder, "whole.pt"), json.dumps([a.environment() for a in ranks]), PYTHONPATH=environment()["PYTHONPATH"])
    return [sealed_data(a) for a in ranks]


def planned(folder):
    """The state that holdfast.dcp saves on two ranks."""
    ranks = agents(folder, 2)
    given = {"world": 2, "agents": [a.environment() for a in ranks], "whole": folder, "path": None, "load": 0, "last": 2, "seed": 2}
    child = subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(HERE, "dcp_script.py"), json.dumps(given)], env=environment(OMP_NUM_THREADS="1"))
    ended = threading.Event()

    def seal():
        while not ended.wait(0.01):
            for a in ranks:
                a.seal()

    sealing = threading.Thread(target=seal)
    sealing.start()
    code = child.wait()
    ended.set()
    sealing.join()
    assert code == 0
    data = []
    for a in ranks:
        (slot,) = [i for i in range(A.SLOTS) if a.slot(i).state == A.SEALED and a.slot(i).step == 2]
        data.append(a.data(slot, a.slot(slot).length))
    return data


class Blob:
    """What no reader knows."""


def objects(rank):
    whole = torch.arange(60.0).view(5, 12)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    tensors = {
        "zero": torch.tensor(3), "none": torch.empty(0, 3), "view": whole[1:3], "turned": whole.t(), "some": whole[:, ::2],
        "last": torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), "tied": [whole, whole], "large": torch.randn(20000),
        "bf16": torch.randn(5).bfloat16(), "fp8": torch.randn(4).to(torch.float8_e4m3fn), "c": torch.randn(3, dtype=torch.complex64), "b": torch.tensor([True, False]),
    }  # fmt: skip
    values = {
        "int": -5, "big": 1 << 200, "minus": -(1 << 70), "float": 0.1, "tiny": 5e-324, "huge": 1e300, "nan": float("nan"), "inf": float("-inf"), "none": None, "yes": True,
        "text": 'a"\\\u00e9\u4e2d\U0001f600\n', "list": [1, [2.5, None], ("a", False)], "tuple": (1, {"in": [b"x", 2]}, ()), "bytes": b"ab\x00", "array": bytearray(b"cd"),
        "typed": array.array("d", [1.5, 2.0]), "np": np.arange(6, dtype=np.int16).reshape(2, 3), "np0": np.empty((0, 3)), "scalar": np.float32(2.5), "ordered": (collections.OrderedDict(a=1),),
        "of tensors": (torch.ones(2, 3), torch.arange(3, dtype=torch.uint8), torch.ones(2).to(torch.float8_e5m2)), "set": {1, 2}, "complex": 1 + 2j, "dtype": torch.float16, "size": torch.Size([3]),
        "empty": {}, "no items": [], 7: "number", True: "yes", None: "no", 1.5: "float", 1e22: "large float",
    }  # fmt: skip
    return {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "t": tensors, "v": values, "opened": [{"a": 1}, torch.ones(2), [3, {"b": torch.zeros(1)}]],
        "unlike": {"at": rank, "same": 5, "only": {rank: "mine"}, "shape": torch.full((rank + 1,), 7.0), "kind": torch.ones(1) if rank else 3},
    }  # fmt: skip


def kinds(folder):
    """All kinds of leaves, on two ranks with different states."""
    case, data = ClientCase(), []
    case.folder, case.addCleanup = folder, lambda *a: None
    for rank, agent in enumerate(agents(folder, 2)):
        ck = case.attach(agent)
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(5)  # all tensors are equal except the random states
        made = objects(rank)
        ck.track(rng=True, **made)
        assert ck.save(2)
        data.append(sealed_data(agent))
        case.release(ck)
    return data


def opaque(folder):
    """An object of a class that only the script defines."""
    case = ClientCase()
    case.folder, case.addCleanup = folder, lambda *a: None
    (agent,) = agents(folder, 1)
    ck = case.attach(agent)
    ck.track(a={"w": torch.ones(3), "blob": Blob()})
    assert ck.save(1)
    return [sealed_data(agent)]

