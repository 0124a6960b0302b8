"""Operations that Python lacks: a memory barrier, touching pages in advance, and huge pages."""

import ctypes
import errno
import mmap
import os
import platform
import time

_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 14, 15, 23, 25
# Neighbours on the heap or of separate mappings: a page and an allocator's header lie between them at most.
_GAP = 2 * mmap.PAGESIZE
_HUGE = 2 << 20
# Seconds for a huge page. A free one takes 0.4 ms to clear and to fill, one that content moves into 0.6 ms; 512 small ones take 1.3 ms.
_SLOW = 0.0015

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FIXED, _MAP_FAILED, _WRITABLE = 0x10, ctypes.c_void_p(-1).value, 0x200
_memoryview = ctypes.pythonapi.PyMemoryView_FromMemory
_memoryview.restype, _memoryview.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def _make_barrier():
    number = _SYS_MEMBARRIER.get(platform.machine())
    if number is not None:
        call = _libc.syscall
        args = (ctypes.c_long(number), ctypes.c_int(_PRIVATE_EXPEDITED), ctypes.c_uint(0), ctypes.c_int(0))
        register = (ctypes.c_long(number), ctypes.c_int(_REGISTER_PRIVATE_EXPEDITED), ctypes.c_uint(0), ctypes.c_int(0))
        if call(*register) == 0 and call(*args) == 0:
            return lambda: call(*args)
    # Without membarrier: releasing one lock and then taking another orders the stores before against those after.
    import threading

    one, other = threading.Lock(), threading.Lock()

    def barrier():
        with one:
            pass
        with other:
            pass

    return barrier


#: All stores of this thread made before the call are visible before any made after it.
barrier = _make_barrier()


def map_shared(fd, size):
    """A file's memory for reading and writing, at an address where huge pages fit, which the mmap module does not choose. It stays mapped
    until the process ends."""
    room = _libc.mmap(None, size + _HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    at = -(-room // _HUGE) * _HUGE
    end = at + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    for first, last in ((room, at), (end, room + size + _HUGE)):
        if first < last:
            _libc.munmap(first, last - first)
    if _libc.mmap(at, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == _MAP_FAILED:
        error = ctypes.get_errno()
        _libc.munmap(at, end - at)
        raise OSError(error, os.strerror(error))
    return _memoryview(at, size, _WRITABLE)


def populate(buffer, offset, length):
    """Touches length bytes of a mapping for writing, so that a later write meets no page fault. Returns False if there is no
    memory for them (a write would end the process by SIGBUS); True if they are present or this kernel cannot report it.
    """
    if length <= 0:
        return True
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    view = (ctypes.c_char * 1).from_buffer(buffer, start)
    try:
        if _libc.madvise(ctypes.addressof(view), offset + length - start, _MADV_POPULATE_WRITE) == 0:
            return True
        return ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS, errno.EINTR, errno.EAGAIN)
    finally:
        del view


def collapse(buffer, offset, length):
    """Moves length bytes of a mapping, which keep their values, into huge pages as far as the kernel has some. Each process that maps
    the file later maps them at once, where it would otherwise map 512 pages one after another. Returns whether that was quick."""
    view = (ctypes.c_char * 1).from_buffer(buffer, offset // _HUGE * _HUGE)
    began = time.thread_time()
    try:
        _libc.madvise(ctypes.addressof(view), length, _MADV_COLLAPSE)
        return time.thread_time() - began <= length / _HUGE * _SLOW
    finally:
        del view


class HugePages:
    """Huge pages for targets of a copy, (address, _, bytes) each, that have no pages yet, as long as that is faster than small pages: the
    kernel may have to free huge pages first, page by page, or get each page back from a virtual machine's host. Neighbours share them."""

    def __init__(self, moves):
        self._slow = False
        for start, end in _neighbours(moves):
            _advise(start, end, _MADV_HUGEPAGE)

    def copy(self, to, source, n):
        """Copies one piece. Afterwards the memory is requested as huge pages again: the kernel may move it into some when it has time."""
        slow = self._slow
        if slow:
            _advise(to, to + n, _MADV_NOHUGEPAGE)
        began = time.thread_time()
        ctypes.memmove(to, source, n)
        if slow:
            _advise(to, to + n, _MADV_HUGEPAGE)
        self._slow = self._slow or time.thread_time() - began > max(n / _HUGE, 1) * _SLOW


def _advise(start, end, advice):
    at = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    if end - at >= _HUGE:
        _libc.madvise(at, (end - at) // mmap.PAGESIZE * mmap.PAGESIZE, advice)


def _neighbours(moves):
    """Ranges (start, end) of targets that lie next to each other."""
    start = end = 0
    for at, _, n in sorted(moves):
        if at > end + _GAP:
            if end:
                yield start, end
            start = at
        end = max(end, at + n)
    if end:
        yield start, end
