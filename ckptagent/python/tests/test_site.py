"""Tests the site hook in real interpreters."""

import os
import stat
import struct
import subprocess
import sys
import unittest

import _holdfast_site as site_hook

from .case import ROOT, ScriptCase, environment


class Chain(ScriptCase):
    def test_the_next_sitecustomize_runs_in_our_place(self):
        other = os.path.dirname(self.file("other/sitecustomize.py", "import sys; sys.marked = __name__"))
        done = self.python(
            "-c", "import sys, sitecustomize; print(sys.marked, sitecustomize.__file__, '_holdfast_site' in sys.modules)",
            PYTHONPATH=str(ROOT) + os.pathsep + other,
        )  # fmt: skip
        self.assertEqual(done.stdout.split(), ["sitecustomize", os.path.join(other, "sitecustomize.py"), "True"])

    def test_an_error_in_the_next_one_is_shown_as_without_us(self):
        other = os.path.dirname(self.file("other/sitecustomize.py", "raise ValueError('theirs')"))
        both = self.python("-c", "print('script')", PYTHONPATH=str(ROOT) + os.pathsep + other)
        alone = self.python("-c", "print('script')", PYTHONPATH=other)
        self.assertEqual((both.stdout, both.returncode), (alone.stdout, alone.returncode))
        self.assertIn("ValueError: theirs", both.stderr)

    def test_it_costs_little(self):
        # The minimum of many runs, next to a standard library module in the same processes: other load on the machine only adds
        # to both.
        ours, argparse = [], []
        for _ in range(9):
            done = self.python("-X", "importtime", "-c", "import argparse", PYTHONPYCACHEPREFIX=self.folder, PYTHONDONTWRITEBYTECODE="")
            took = {name.strip(): int(sum_) for _, sum_, name in (line.split("|") for line in done.stderr.splitlines()) if sum_.strip().isdigit()}
            self.assertIn("sitecustomize", took, done.stderr)
            ours.append(took["sitecustomize"])
            argparse.append(took["argparse"])
        self.assertLess(min(ours), 2 * min(argparse), "microseconds, next to argparse")


class Launchers(ScriptCase):
    def test_which_command_lines_are_launchers(self):
        for line, want in {
            "python -m torch.distributed.run --nproc-per-node=2 t.py": True,
            "python -um torch.distributed.run t.py": True,
            "python -mtorch.distributed.launch t.py": True,
            "python -X dev -W ignore -m torch.distributed.run": True,
            "python -Xdev -u /v/bin/torchrun t.py": True,
            "python --check-hash-based-pycs always -m torch.distributed.run": True,
            "python t.py -m torch.distributed.run": False,
            "python -c pass -m torch.distributed.run": False,
            "python -m pdb torchrun": False,
            "python mytorchrun": False,
            "python": False,
            "python -": False,
        }.items():
            self.assertIs(site_hook.is_launcher(line.split()), want, line)

    def installed(self):
        """A folder as the installer leaves it, with an agent that prints its arguments."""
        root = os.path.join(self.folder, "hf")
        agent = self.file("hf/bin/holdfast-agent", '#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
        os.chmod(agent, os.stat(agent).st_mode | stat.S_IXUSR)
        return {"HOLDFAST_ROOT": root, "HOLDFAST_CONTAINER": "c1"}

    def test_a_launcher_becomes_the_shim(self):
        env = self.installed()
        torchrun = self.file("elsewhere/torchrun", "print('the real one')")
        done = self.python("-X", "dev", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", "a b", **env)
        self.assertEqual(done.stdout.splitlines(), ["launch", "--", sys.executable, "-X", "dev", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", "a b"])
        done = self.python(torchrun, "x", **env)
        self.assertEqual(done.stdout.splitlines(), ["launch", "--", sys.executable, torchrun, "x"])

    def test_deepspeeds_runner_is_read_and_goes_on(self):
        env = self.installed()
        agent = self.file("hf/bin/holdfast-agent", '#!/bin/sh\nfor a in "$HOLDFAST_RUNNER_PYTHON" "$@"; do echo "$a"; done\n')
        os.chmod(agent, os.stat(agent).st_mode | stat.S_IXUSR)
        runner = self.file("elsewhere/deepspeed", "import os; print('goes on', 'HOLDFAST_RUNNER_READ' in os.environ)")
        done = self.python("-u", runner, "--hostfile", "h", "t.py", **env)
        self.assertEqual(done.stdout.splitlines(), [sys.executable, "launch", "--", runner, "--hostfile", "h", "t.py"])
        done = self.python("-m", "deepspeed.launcher.runner", "t.py", **env)
        self.assertEqual(done.stdout.splitlines(), [sys.executable, "launch", "--", sys.executable, "-m", "deepspeed.launcher.runner", "t.py"])
        self.assertEqual(self.python(runner, "t.py", HOLDFAST_RUNNER_READ="1", **env).stdout, "goes on False\n")
        self.assertEqual(self.python(runner, "t.py", HOLDFAST_LOCAL_RANK="0", **env).stdout, "goes on False\n")
        done = self.python("-m", "deepspeed.launcher.launch", "--world_info=x", "t.py", **env)
        self.assertEqual(done.stdout.splitlines()[1:], ["launch", "--", sys.executable, "-m", "deepspeed.launcher.launch", "--world_info=x", "t.py"])

    def test_others_pass(self):
        env = self.installed()
        torchrun = self.file("elsewhere/torchrun", "print('the real one')")
        self.assertEqual(self.python("-c", "print(1)", **env).stdout, "1\n")
        self.assertEqual(self.python(torchrun, HOLDFAST_ROOT=env["HOLDFAST_ROOT"]).stdout, "the real one\n")
        self.assertEqual(self.python(torchrun, HOLDFAST_LOCAL_RANK="0", **env).stdout, "the real one\n")


class Errors(ScriptCase):
    def test_the_traceback_is_also_in_the_file(self):
        script = self.file("s.py", "import os\nassert 'HOLDFAST_ERROR_FILE' not in os.environ\nraise ValueError('first')\n")
        path = os.path.join(self.folder, "error.txt")
        done = self.python(script, HOLDFAST_LOCAL_RANK="0", HOLDFAST_ERROR_FILE=path)
        self.assertEqual(done.returncode, 1)
        with open(path) as f:
            self.assertEqual(f.read(), done.stderr)
        self.assertEqual(done.stderr, self.python(script).stderr)

    def test_a_whole_command_leaves_its_traceback(self):
        script = self.file("s.py", "import os\nassert 'HOLDFAST_ERROR_FILE' not in os.environ and 'HOLDFAST_PAGE' not in os.environ\n1/0\n")
        path = os.path.join(self.folder, "error.txt")
        done = self.python(script, HOLDFAST_CONTAINER="c1", HOLDFAST_ERROR_FILE=path)
        with open(path) as f:
            self.assertEqual(f.read(), done.stderr)
        self.assertIn("ZeroDivisionError", done.stderr)

    def test_no_file_for_a_good_end_or_an_exit(self):
        path = os.path.join(self.folder, "error.txt")
        for text, code in [("print(1)", 0), ("raise SystemExit(3)", 3)]:
            done = self.python(self.file("s.py", text), HOLDFAST_LOCAL_RANK="0", HOLDFAST_ERROR_FILE=path)
            self.assertEqual(done.returncode, code)
            self.assertFalse(os.path.exists(path))

    def test_a_child_process_does_not_write_there(self):
        path = os.path.join(self.folder, "error.txt")
        script = self.file("s.py", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1/0'])\n")
        done = self.python(script, HOLDFAST_LOCAL_RANK="0", HOLDFAST_ERROR_FILE=path)
        self.assertIn("ZeroDivisionError", done.stderr)
        self.assertFalse(os.path.exists(path))

    def test_a_hook_of_the_scripts_own_is_kept(self):
        path = os.path.join(self.folder, "error.txt")
        other = os.path.dirname(self.file("o/sitecustomize.py", "import sys\nsys.excepthook = lambda *a: print('theirs', a[1])\n"))
        done = self.python("-c", "1/0", HOLDFAST_LOCAL_RANK="0", HOLDFAST_ERROR_FILE=path, PYTHONPATH=str(ROOT) + os.pathsep + other)
        self.assertEqual(done.stdout, "theirs division by zero\n")
        self.assertTrue(os.path.exists(path))


class Pages(ScriptCase):
    """What a script without the client reports to its agent."""

    def rank(self, text, page=None, **extra):
        if page is None:
            page = os.path.join(self.folder, "page")
            with open(page, "wb") as f:
                f.write(bytes(1 << 20))
        env = {"HOLDFAST_LOCAL_RANK": "1", "HOLDFAST_GENERATION": "3", "HOLDFAST_ERROR_FILE": self.folder + "/e", "HOLDFAST_PAGE": page}
        self.done = self.python(self.file("s.py", text), **{**env, **extra})
        self.assertEqual(self.done.stderr, "")
        with open(page, "rb") as f:
            content = f.read()
        n = struct.unpack_from("<7Q", content)
        return content[:8], n[1:5] + n[6:], content[4096 : 4096 + n[5]].decode().split("\n")[:-1]

    def test_imports_are_on_the_page(self):
        self.file("mine.py", "")
        magic, numbers, names = self.rank("""
            import gc, os, sys
            gc.disable()
            assert "HOLDFAST_PAGE" not in os.environ
            import json, mine
            import xml.dom
            print(os.getpid())
        """)  # fmt: skip
        self.assertEqual(magic, b"HFPAGE01")
        self.assertEqual(numbers, (3, int(self.done.stdout), 0, 0, 1))
        for name in ("os", "json", "json.decoder", "xml.dom"):
            self.assertIn(name, names)
        for name in ("mine", "__main__", "sitecustomize", "_holdfast_site", "_holdfast_page", "s"):
            self.assertNotIn(name, names)
        self.assertEqual(len(names), len(set(names)))

    def test_while_the_script_sleeps(self):
        page = os.path.join(self.folder, "page")
        with open(page, "wb") as f:
            f.write(bytes(1 << 20))
        script = self.file("s.py", "import wave, time\nprint('asleep', flush=True)\ntime.sleep(600)\n")
        env = environment(HOLDFAST_LOCAL_RANK="1", HOLDFAST_GENERATION="3", HOLDFAST_ERROR_FILE=self.folder + "/e", HOLDFAST_PAGE=page)
        with subprocess.Popen([sys.executable, script], env=env, stdout=subprocess.PIPE, text=True) as p:
            p.stdout.readline()
            with open(page, "rb") as f:
                content = f.read()
            p.kill()
        self.assertIn(b"\nwave\n", content)

    def test_no_child_writes(self):
        """Neither a process that the rank forks nor one that it starts."""
        _, numbers, names = self.rank("""
            import os, subprocess, sys, _holdfast_imports as hook
            print(os.getpid(), flush=True)
            if os.fork() == 0:
                import wave
                hook._finder.note.__self__.steps(7)
                hook._finder.note.__self__.resumed(7)
                os._exit(0)
            os.wait()
            subprocess.run([sys.executable, "-c", "import wave"])
        """)
        self.assertEqual(numbers, (3, int(self.done.stdout), 0, 0, 1))
        self.assertNotIn("wave", names)

    def test_one_process_at_a_time_writes(self):
        """If a rank is not Python, several of its children act as the rank's process."""
        _, numbers, names = self.rank("""
            import os, subprocess, sys
            env = dict(os.environ, HOLDFAST_ERROR_FILE="e", HOLDFAST_PAGE="page")
            subprocess.run([sys.executable, "-c", "import wave"], env=env, check=True)
            print(os.getpid())
        """)
        self.assertEqual(numbers, (3, int(self.done.stdout), 0, 0, 1))
        self.assertNotIn("wave", names)

    def test_without_a_page(self):
        short = self.file("short", "x")
        for page in (short, os.path.join(self.folder, "none")):
            done = self.python(self.file("s.py", "import wave; print(1)"), HOLDFAST_LOCAL_RANK="1", HOLDFAST_ERROR_FILE="e", HOLDFAST_PAGE=page)
            self.assertEqual((done.stdout, done.stderr), ("1\n", ""))

    def test_names_that_do_not_fit_are_left_out(self):
        magic, numbers, names = self.rank("""
            import os, threading, _holdfast_imports as hook
            note = hook._finder.note
            note("bad\\nname")
            threads = [threading.Thread(target=lambda t=t: [note("n%d.%d" % (t, i) + "x" * 90) for i in range(3000)]) for t in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
            note("y" * 200)
        """)
        ours = [n for n in names if n.endswith("xx")]
        self.assertGreater(len(ours), 10000)
        self.assertEqual(len(ours), len(set(ours)))
        self.assertTrue(all(len(n) >= 94 for n in ours))
        self.assertNotIn("y" * 200, names)

    def test_optimizer_steps(self):
        """The hook that torch would get, through a module of that name."""
        self.file("lib/site-packages/torch/__init__.py", """
            __version__ = "2.15.0"
            class compiler:
                is_compiling = staticmethod(lambda: False)
            class Tensor: pass
            device = str
        """)
        self.file("lib/site-packages/torch/optim/__init__.py", "")
        self.file("lib/site-packages/torch/optim/optimizer.py", """
            hooks = []
            register_optimizer_step_post_hook = hooks.append
            class Optimizer:
                state = {}
                def profile_hook_step(f): return f
                profile_hook_step = staticmethod(lambda f: Optimizer.step)
                def step(self):
                    for hook in hooks: hook(self, (), {})
        """)
        _, numbers, _ = self.rank("""
            import sys
            sys.path.insert(0, "lib/site-packages")
            from torch.optim.optimizer import Optimizer
            class Adam(Optimizer): pass
            o = Adam()
            o.state = {1: {"step": 41}}
            for _ in range(3):
                o.state[1]["step"] += 1
                o.step()
        """)
        self.assertEqual(numbers[2:], (3, 42, 1))


if __name__ == "__main__":
    unittest.main()
