"""Code that the trainers' hooks share."""

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
        self._of, self._told, self._lines = None, 0, bytearray()

    def lines(self, log):
        if log is not self._of or len(log) < self._told:
            self._of, self._told, self._lines = log, 0, bytearray()
        for entry in log[self._told :]:
            self._lines += json.dumps(entry, default=float).encode() + b"\n"
        self._told = len(log)
        return self._lines

    @staticmethod
    def read(lines):
        return [json.loads(line) for line in lines.splitlines()]
