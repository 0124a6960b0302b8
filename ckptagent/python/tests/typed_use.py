# pyright: strict
import holdfast
from holdfast import ArenaError, Checkpoint, RestoreError, Saved, TrackError

checkpoint: Checkpoint = holdfast.attach()
with checkpoint.skip_init():
    pass
checkpoint.track(rng=True, parts=[bytearray(8)])
first: int = checkpoint.restore()
saved: Saved = checkpoint.save(first + 1, blocking=True)
known: bool = bool(saved) and saved.copied and saved.sealed and saved.durable
why: str = saved.reason
done: int = saved.step + checkpoint.resume_step
checkpoint.step(done)
kept: bool = checkpoint.active
with checkpoint.phase("evaluation", up_to=60.0):
    pass
errors: tuple[type[Exception], ...] = (ArenaError, RestoreError, TrackError)
