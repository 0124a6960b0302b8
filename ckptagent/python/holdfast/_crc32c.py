"""Computes the CRC32C of many bytes at about the speed of memory, for a Python that has no library for it.

A CRC is linear: bytes may be replaced by other bytes with the same remainder. With y = x^64, CRC32C's polynomial divides
y^6777 + y^484 + y^100 + 1. So a 64-bit word of a message may be set to zero if it is added (XOR) to the words 6293, 6677 and
6777 places behind it. torch adds long runs of words in one call each. The usual table handles the last 6777 words.
tests/test_export.py compares the result with that of the table alone.
"""

from . import _arena

_PLACES = (6293, 6677, 6777)
_RUN, _SPAN = _PLACES[0], _PLACES[-1]
_PIECE = 4 * _RUN  # words copied at a time: they fit the cache, and are too few for torch to start threads


def crc32c(buffer, at, length):
    """CRC32C of length bytes of a writable buffer from offset at, such as a private mapping of a file."""
    import torch

    words = length // 8
    gone = max(0, words - _SPAN)
    if not gone:
        return _arena.crc32c(buffer[at : at + length])
    source = torch.frombuffer(buffer, dtype=torch.int64, count=words, offset=at)
    first = torch.tensor([0xFF] * 4 + [0] * 4, dtype=torch.uint8).view(torch.int64)  # the initial value of a CRC
    work, carried = torch.empty(_PIECE + _SPAN, dtype=torch.int64), torch.zeros(_SPAN, dtype=torch.int64)
    carried[:1] ^= first
    for start in range(0, gone, _PIECE):
        n = min(_PIECE, gone - start)
        work[:n] = source[start : start + n]
        work[n:] = 0
        work[:_SPAN] ^= carried
        for lo in range(0, n, _RUN):
            run = work[lo : min(lo + _RUN, n)]
            for place in _PLACES:
                work[lo + place : lo + place + len(run)] ^= run
        carried.copy_(work[n : n + _SPAN])
    carried[:1] ^= first  # the table starts from the same initial value, so it is removed here
    split = at + 8 * (gone + _SPAN)
    head = int.from_bytes(buffer[at + 8 * gone : split], "little") ^ int.from_bytes(bytes(carried.view(torch.uint8).tolist()), "little")
    return _arena.crc32c(head.to_bytes(8 * _SPAN, "little") + bytes(buffer[split : at + length]))
