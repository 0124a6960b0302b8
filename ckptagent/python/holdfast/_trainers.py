"""Code shared by the hooks for trainers: holdfast.transformers, holdfast.lightning and holdfast.deepspeed."""

import json

from ._kinds import TrackError


def refuse(hook, *reasons):
    """Raises TrackError for the first (wrong, limitation, remedy) whose `wrong` is true."""
    for wrong, what, instead in reasons:
        if wrong:
            raise TrackError("holdfast.%s %s: %s" % (hook, what, instead))


class Log:
    """A growing list of dicts, as lines of JSON: each entry is encoded once, not at every save."""

    def __init__(self):
        self._of, self._encoded, self._lines = None, 0, bytearray()

    def lines(self, log):
        if log is not self._of or len(log) < self._encoded:
            self._of, self._encoded, self._lines = log, 0, bytearray()
        for entry in log[self._encoded :]:
            self._lines += json.dumps(entry, default=float).encode() + b"\n"
        self._encoded = len(log)
        return self._lines

    @staticmethod
    def read(lines):
        return [json.loads(line) for line in lines.splitlines()]
