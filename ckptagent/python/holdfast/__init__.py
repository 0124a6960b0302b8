"""Holdfast keeps the state of a training process in memory that outlives it.

    import holdfast

    ck = holdfast.attach()
    ck.track(model=model, optimizer=optimizer, rng=True)
    start = ck.restore()                      # 0: from the beginning
    for step in range(start + 1, last + 1):
        train()
        ck.save(step)                         # `step` steps are finished

Outside of a Holdfast job every call does nothing and restore() returns 0, so the same script runs anywhere.
"""

from ._client import Checkpoint, attach
from ._arena import ArenaError
from ._kinds import RestoreError, TrackError
from ._saved import Saved

__all__ = ["ArenaError", "Checkpoint", "RestoreError", "Saved", "TrackError", "attach"]
__version__ = "1"
