"""The result of a save."""

from . import _arena


class Saved:
    """The result of one save. True if the state was copied, or is being copied beside training; False for good once such a copy
    is dropped because its source changed. `sealed` is true once the agent has verified it, so that it outlives process and agent;
    `durable` once it outlives the node. Both only read the arena."""

    __slots__ = ("step", "copied", "reason", "_arena", "_slot", "_grant", "_generation")

    step: int
    copied: bool
    reason: str

    def __init__(self, step, copied, reason="", arena=None, slot=None, grant=0, generation=0) -> None:
        self.step, self.copied, self.reason = step, copied, reason
        self._arena, self._slot, self._grant, self._generation = arena, slot, grant, generation

    def __bool__(self) -> bool:
        return self.copied

    def __repr__(self) -> str:
        return "Saved(step=%d, copied=%s%s)" % (self.step, self.copied, ", reason=%r" % self.reason if self.reason else "")

    def _drop(self, reason):
        self.copied, self.reason = False, reason

    @property
    def sealed(self) -> bool:
        """Whether the agent has verified this step."""
        if not self.copied:
            return False
        s = self._arena.slot(self._slot)
        return s is not None and s.state == _arena.SEALED and s.grant == self._grant and s.step == self.step

    @property
    def durable(self) -> bool:
        """Whether storage has this step, or a newer one of its line, complete from all ranks, and it is recorded."""
        if not self.copied:
            return False
        c = self._arena.control()
        return c is not None and c.generation == self._generation and c.durable_step >= self.step
