"""Code shared by tests: an object with state, clients as new processes would create them, and scripts in real interpreters."""

import contextlib
import fcntl
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import holdfast

from .fakeagent import FakeAgent

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Holder:
    """An object with state, like an optimizer or a scheduler."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class ClientCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.agents = []

    def agent(self, **options):
        agent = FakeAgent(self.folder, **options)
        agent.open_grant()
        self.addCleanup(agent.close)
        return agent

    def attach(self, agent=None, environment=None):
        """A fresh client, as in a new process, with only that agent's environment."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        clean.update(environment if environment is not None else agent.environment() if agent else {})
        self.said = io.StringIO()
        with mock.patch.dict(os.environ, clean, clear=True), contextlib.redirect_stderr(self.said):
            ck = holdfast.Checkpoint()
        self.addCleanup(self.release, ck)
        return ck

    @staticmethod
    def release(ck):
        """Releases the lock, as the end of a process does."""
        if ck._arena is not None:
            fcntl.flock(ck._arena._fd, fcntl.LOCK_UN)
        if ck._socket is not None:
            ck._socket.close()

    def next_generation(self, ck, agent, step):
        self.release(ck)
        agent.close()
        after = FakeAgent(self.folder, rank=agent.rank, generation=agent.generation + 1, restore_step=step)
        after.open_grant()
        self.addCleanup(after.close)
        return after

    def quiet(self):
        return contextlib.redirect_stderr(io.StringIO())


def environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTHON"))}
    env.update(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
    env.update(extra)
    return env


class ScriptCase(unittest.TestCase):
    """Scripts in a separate folder, in real interpreters."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(textwrap.dedent(text))
        return path

    def python(self, *args, **extra):
        return subprocess.run([sys.executable, *args], env=environment(**extra), cwd=self.folder, capture_output=True, text=True)
