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
