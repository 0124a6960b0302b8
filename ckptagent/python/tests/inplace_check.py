"""With PyTorch alone, loads a step from storage and its export, and compares both.

    python inplace_check.py IN_PLACE EXPORTED REPORT [IN_PLACE EXPORTED REPORT ...]      prints for each pair how many names are
    equal
"""

import importlib.util
import json
import logging
import math
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as m

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
assert importlib.util.find_spec("holdfast") is None, "holdfast can be imported here"


class Planner(dcp.DefaultLoadPlanner):
    """Loads names directly, without building a state."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)


def load(folder, names=None):
    meta = dcp.FileSystemReader(folder).read_metadata()
    state = {}
    for name, what in meta.state_dict_metadata.items():
        if names is None or name in names:
            tensor = isinstance(what, m.TensorStorageMetadata)
            state[name] = torch.empty(what.size, dtype=what.properties.dtype) if tensor else None
    dcp.load(state, checkpoint_id=folder, planner=Planner())
    return meta, state


def bits(v):
    """v as values that are equal only if everything in it is."""
    if isinstance(v, torch.Tensor):
        raw = v.contiguous().view(-1).view(torch.uint8).tolist() if v.numel() else []
        return "tensor", str(v.dtype), tuple(v.shape), raw
    if type(v).__module__ == "numpy":
        return type(v).__name__, str(v.dtype), v.shape, v.tobytes()
    if isinstance(v, dict):
        return type(v).__name__, [(bits(k), bits(x)) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return type(v).__name__, [bits(x) for x in v]
    return type(v).__name__, repr(v)


def main(in_place, exported, report):
    report = json.loads(report)
    want_meta, want = load(exported)
    got_meta, got = load(in_place, set(want))
    missing, more = set(want) - set(got), set(got_meta.state_dict_metadata) - set(want)
    own = {"rank-%d.%s" % (r, name) for name in report["differ"] for r in range(64)}
    assert all(name in own and isinstance(want[name], torch.Tensor) for name in missing), sorted(missing)
    assert all(any(name == x or name.startswith("rank-") and name.endswith(x) for x in report["left"]) for name in more), sorted(more)
    for name in got:
        assert bits(got[name]) == bits(want[name]), (name, got[name], want[name])
        assert got_meta.planner_data[name] == want_meta.planner_data[name], (name, got_meta.planner_data[name], want_meta.planner_data[name])
        of, as_ = got_meta.state_dict_metadata[name], want_meta.state_dict_metadata[name]
        assert type(of) is type(as_), name
        if isinstance(of, m.TensorStorageMetadata):
            assert (of.size, of.properties) == (as_.size, as_.properties), (name, of, as_)
            assert {(c.offsets, c.sizes) for c in of.chunks} == {(c.offsets, c.sizes) for c in as_.chunks}, (name, of.chunks, as_.chunks)
            assert sum(math.prod(c.sizes) for c in of.chunks) == math.prod(of.size)
    chunks = sum(len(w.chunks) for w in got_meta.state_dict_metadata.values() if isinstance(w, m.TensorStorageMetadata))
    print("%d names are equal, of %d tensors in %d parts; %d differ between ranks and are not listed" % (len(got), sum(isinstance(v, torch.Tensor) for v in got.values()), chunks, len(missing)))


for at in range(1, len(sys.argv), 3):
    main(*sys.argv[at : at + 3])
