"""Fills the tensors of a module from views of a saved state, with all threads."""

import sys

from . import _memory
from ._kinds import has_memory
from ._state import _BULK, _as_bytes, torch_leaf

_HOOKS = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")
_METHODS = ("load_state_dict", "state_dict", "_load_from_state_dict", "_save_to_state_dict")


def copies_from_views(value):
    """Whether value is a module: it copies what load_state_dict gets, so it keeps no view of the arena."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return False
    plain = torch.nn.Module
    return type(value).load_state_dict is plain.load_state_dict and all(
        type(m).set_extra_state is plain.set_extra_state and type(m)._load_from_state_dict is plain._load_from_state_dict
        for m in value.modules()
    )


def fill(module, saved, pool):
    """Copies saved into a module whose load_state_dict would do nothing but copy. False if it might do more; then nothing is changed."""
    torch = sys.modules["torch"]
    has_memory(module)
    if not all(_is_plain(torch, m) for m in module.modules()):
        return False
    now = module.state_dict()
    if now.keys() != saved.keys() or not all(_alike(torch, now[k], saved[k]) for k in now):
        return False
    moves = [(t.data_ptr(), saved[k].data_ptr(), t.nbytes) for k, t in now.items() if t.nbytes >= _BULK]
    pool.copy(moves, _memory.HugePages(moves).copy)
    with torch.no_grad():
        for k, t in now.items():
            if t.nbytes < _BULK:
                t.copy_(saved[k])
    return True


def _is_plain(torch, m):
    kind, plain = type(m), torch.nn.Module
    return all(getattr(kind, name) is getattr(plain, name) for name in _METHODS) and not any(getattr(m, name, None) for name in _HOOKS)


def _alike(torch, t, saved):
    if type(t) is not torch.Tensor or type(saved) is not torch.Tensor or t.shape != saved.shape or t.dtype != saved.dtype:
        return False
    return _as_bytes(torch_leaf(t)) and saved.is_contiguous()
