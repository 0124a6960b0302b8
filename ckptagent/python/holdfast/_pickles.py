"""Objects of a state that were pickled, read in a process that did not write them.

Who can write to storage could have a pickle do anything. So only types are made that do nothing but hold values;
whatever else there is stays out, unless who reads says that the folder is to be trusted.
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


#: What stands in a value's place that was left out; name: what it would have been made of.
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
    """The object that was pickled, or Left. With trust, any."""
    try:
        return (pickle.Unpickler if trust else _Allowed)(io.BytesIO(blob)).load()
    except _Refused as e:
        return Left(str(e))
    except Exception as e:  # trusted, and of a module that is not here; or of another version of it
        return Left("%s: %s" % (type(e).__name__, e))
