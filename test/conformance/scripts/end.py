"""A script that ends in the way that its argument names: end.py plain|record HOW.

With HOLD=FOLDER in its environment, attempt 0 makes a step, waits for FOLDER/go and is killed; the next one waits for
FOLDER/end.
"""

import os
import signal
import sys
import time


def held():
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first:
        import holdfast

        state = holdfast.attach()
        state.track(state={})
        state.restore()
        state.save(1)  # from here on the agent starts standbys
    while not os.path.exists(os.path.join(os.environ["HOLD"], "go" if first else "end")):
        time.sleep(0.02)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    print("begins", flush=True)
    {
        "0": lambda: None,
        "1": lambda: sys.exit(1),
        "3": lambda: sys.exit(3),
        "at once": lambda: os._exit(3),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "aborted": os.abort,
        "text": lambda: sys.exit("some text"),
        "exception": lambda: [][0],
    }[sys.argv[-1]]()


if sys.argv[1] == "record":
    from torch.distributed.elastic.multiprocessing.errors import record

    main = record(main)
if "HOLD" in os.environ:
    held()
main()
