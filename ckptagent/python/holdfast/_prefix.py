"""Computes the bytes before each tensor in a slot. With these bytes torch.load can read the tensor in place.

torch.save(_use_new_zipfile_serialization=False) writes the same bytes before a contiguous tensor. Every torch.load accepts
them, also with weights_only. See "Data" in docs/formats/checkpoint.md.
"""

import functools
import math
import struct

#: torch.serialization's magic number, protocol version and description of the machine, each pickled.
HEAD = (
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    b"\x80\x02M\xe9\x03."
    b"\x80\x02}(X\x10\0\0\0protocol_versionM\xe9\x03X\x0d\0\0\0little_endian\x88X\x0a\0\0\0type_sizes"
    b"}(X\x05\0\0\0shortK\x02X\x03\0\0\0intK\x04X\x04\0\0\0longK\x04uu."
)
_KEYS = b"\x80\x02]X\x01\0\0\x000a."  # the one storage that follows: ["0"]

# Types that torch has a storage class for; a tensor of another type is a storage of bytes, viewed as that type.
_STORAGES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def _int(n):
    return b"J" + struct.pack("<i", n) if n < 1 << 31 else b"\x8a\x08" + struct.pack("<q", n)


def _tuple(numbers):
    return b"(" + b"".join(map(_int, numbers)) + b"t"


def _text(s):
    return b"X" + struct.pack("<I", len(s)) + s


@functools.lru_cache(maxsize=65536)
def of(dtype, shape, nbytes):
    """The bytes to put before a row-major tensor."""
    stride = [math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape))]
    kind = _STORAGES.get(dtype)
    elements = math.prod(shape) if kind else nbytes
    storage = b"(" + _text(b"storage") + b"ctorch\n%sStorage\n" % (kind or "Byte").encode() + _text(b"0") + _text(b"cpu") + _int(elements) + b"NtQ"
    tensor = b"(" + storage + b"K\0" + _tuple(shape) + _tuple(stride) + b"\x89" + b"ccollections\nOrderedDict\n)R"
    if kind:
        made = b"ctorch._utils\n_rebuild_tensor_v2\n" + tensor + b"tR"
    else:
        made = b"ctorch._utils\n_rebuild_tensor_v3\n" + tensor + b"ctorch\n%s\ntR" % dtype.encode()
    return HEAD + b"\x80\x02" + made + b"." + _KEYS + struct.pack("<q", elements)
