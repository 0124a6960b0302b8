"""Reads and sets the random states of Python, torch and numpy, of those that are imported."""

import random
import sys


def get():
    state = {"python": random.getstate()}
    torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    if np is not None:
        state["numpy"] = np.random.get_state()
    return state


def put(state):
    random.setstate(state["python"])
    if "torch" in state:
        __import__("torch").set_rng_state(state["torch"])
    if "cuda" in state:
        __import__("torch").cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        __import__("numpy").random.set_state(state["numpy"])


def derive(rank, step):
    """Random states of a rank that another one gave its state to: they follow from the script's seed, the rank and the step."""
    torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
    seed = "%s %s %d" % (torch.initial_seed() if torch is not None else 0, rank, step)
    random.seed(seed)
    number = random.Random(seed).getrandbits(32)
    if torch is not None:
        torch.manual_seed(number)
    if np is not None:
        np.random.seed(number)
