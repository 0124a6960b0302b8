"""Pickled objects of a state, read in a process that did not write them.

A pickle can run any code, so an account that can write to storage could attack a reader. Only types that merely hold values are
unpickled. Objects of all other types are left out, unless the caller trusts the folder.
"""

import collections
import io
import pickle

_ALLOWED = {
    "builtins": ("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set", "str", "tuple"),
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "numpy": ("dtype",),
    "numpy.core.multiarray": ("scalar",),
    "numpy._core.multiarray": ("scalar",),
    "torch": ("Size", "device"),
}


#: Replaces a value that was left out; name: the function or class that it would have been made by.
Left = collections.namedtuple("Left", "name")


class _Refused(pickle.UnpicklingError):
    pass


class _Allowed(pickle.Unpickler):
    def find_class(self, module, name):
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch":
            import torch

            found = getattr(torch, name, None)
            if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
                return found
        raise _Refused("%s.%s" % (module, name))


def load(blob, trust):
    """The unpickled object, or Left. With trust, of any type."""
    try:
        return (pickle.Unpickler if trust else _Allowed)(io.BytesIO(blob)).load()
    except _Refused as e:
        return Left(str(e))
    except Exception as e:  # trusted, but its module is missing or has another version
        return Left("%s: %s" % (type(e).__name__, e))
