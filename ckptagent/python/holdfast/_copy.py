"""Copies by several threads that release the interpreter's lock.

One core alone cannot copy at the speed of memory. The calling thread copies too. Between saves the threads wait and hold no
lock. A pool of threads belongs to the process that created it, because a fork inherits no threads.
"""

import ctypes
import itertools
import os
import queue
import threading

#: Threads of a rank: its share of the cores, from 4 to 16 of them where there are as many cores.
FEW, MOST = 4, 16
#: Bytes that one thread takes at a time: large enough that the overhead is small, small enough that all threads end together.
PIECE = 8 << 20


def cores():
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def share():
    """How many threads a rank copies with."""
    try:
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        ranks = 1
    return min(cores(), max(FEW, min(MOST, cores() // ranks)))


class Pool:
    """Threads that copy. Started at the first copy that is large enough."""

    def __init__(self, threads=None):
        self._want = share() if threads is None else threads
        self._work, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        self._helpers = None

    def start(self):
        """Starts the threads; if the container allows none, the caller copies alone."""
        if self._helpers is not None:
            return
        self._helpers = 0
        for _ in range(self._want - 1):
            try:
                threading.Thread(target=self._serve, name="holdfast-copy", daemon=True).start()
            except RuntimeError:  # the container allows no more threads
                return
            self._helpers += 1

    def copy(self, moves, move=ctypes.memmove):
        """Carries out moves (to, from, bytes). Returns once no thread touches them any more. If the caller is interrupted
        meanwhile, the copy is incomplete, and the interrupt is raised after that."""
        pieces = cut(moves)
        if len(pieces) == 1:
            move(*pieces[0])
            return
        self.start()
        helpers = min(self._helpers, len(pieces) - 1)
        turn = itertools.count()  # next() is atomic under the interpreter's lock
        running, interrupted = 0, None
        try:
            for _ in range(helpers):
                running += 1
                self._work.put((pieces, turn, move))
            _take(pieces, turn, move)
        except BaseException as e:
            interrupted = e
            pieces[:] = []  # no thread begins another piece
        while running:
            try:
                self._done.get()
                running -= 1
            except BaseException as e:
                interrupted = e
                pieces[:] = []
        if interrupted is not None:
            raise interrupted

    def _serve(self):
        while True:
            pieces, turn, move = self._work.get()
            _take(pieces, turn, move)
            del pieces, turn, move
            self._done.put(None)


def _take(pieces, turn, move):
    for i in turn:
        try:
            piece = pieces[i]
        except IndexError:
            return
        move(*piece)


def cut(moves):
    """Splits moves into parts of at most PIECE bytes."""
    out = []
    for to, source, n in moves:
        for at in range(0, n, PIECE):
            out.append((to + at, source + at, min(PIECE, n - at)))
    return out
