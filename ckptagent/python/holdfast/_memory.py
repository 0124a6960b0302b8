"""Two operations that Python lacks: a memory barrier, and touching pages in advance."""

import ctypes
import errno
import mmap
import platform

_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4
_MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


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
