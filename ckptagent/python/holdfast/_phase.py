"""Phases: what a script does for some time without a step, such as an evaluation, each with a lease.

Of the open phases, the one whose lease ends last is on the rank's page, from which the agent reads it. Without a page, and in a
forked child, a phase does nothing.
"""

import sys
import threading
import time

MOST_NAME, MOST_SECONDS = 64, 24 * 3600

_open = []  # the phases of this process, the newest first
_lock = threading.RLock()  # a signal handler may open a phase


class Phase:
    """A phase that is open until close(), or until the block ends if it is used as a context manager."""

    def __init__(self, name: str, up_to: float) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MOST_NAME:
            raise ValueError('phase(name=%r): give it a name of 1 to %d printable bytes, such as "evaluation"' % (name, MOST_NAME))
        if isinstance(up_to, bool) or not isinstance(up_to, (int, float)) or not 0 < up_to <= MOST_SECONDS:
            raise ValueError("phase(up_to=%r): give the longest time that the phase may take, in seconds: above 0, at most %d" % (up_to, MOST_SECONDS))
        self._name, self._of, self._page = name.encode(), int(up_to * 1e9), _page()
        self._until = time.monotonic_ns() + self._of
        if self._page is not None:
            with _lock:
                _open.insert(0, self)
                self._show()

    def close(self) -> None:
        """Ends the phase; closing it again changes nothing."""
        if self._page is None or not self._page.mine():
            return
        with _lock:
            if self in _open:
                _open.remove(self)
                self._show()

    def _show(self):
        if _open:
            last = max(_open, key=lambda p: p._until)
            self._page.phase(last._name, last._of, last._until)
        else:
            self._page.phase(b"", 0, 0)

    def __enter__(self) -> "Phase":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _page():
    """The page of this process, which the site hook has opened; None: there is none, or it is another process's."""
    page = getattr(sys.modules.get("_holdfast_page"), "current", None)
    return page if page is not None and page.mine() else None
