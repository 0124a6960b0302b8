"""The site hook, in real interpreters."""

import json
import os
import socket
import stat
import sys
import unittest

import _holdfast_site as site_hook

from .case import ROOT, ScriptCase


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
        # The smallest of many: what else runs on the machine only adds.
        times = []
        for _ in range(9):
            done = self.python("-X", "importtime", "-c", "pass", PYTHONPYCACHEPREFIX=self.folder, PYTHONDONTWRITEBYTECODE="")
            ours = [line.split("|")[1] for line in done.stderr.splitlines() if line.endswith("| sitecustomize") or line.endswith(" sitecustomize")]
            self.assertEqual(len(ours), 1, done.stderr)
            times.append(int(ours[0]))
        self.assertLess(min(times), 5000, "microseconds")


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
        """A folder as the installer leaves it, with an agent that shows how it was called."""
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


class Modules(ScriptCase):
    def test_a_script_without_the_client_reports_once(self):
        clock = [0.0]
        watch = site_hook.ModuleWatch(clock=lambda: clock[0])
        sent = []
        watch._send = lambda: sent.append(clock[0]) or True
        watch.start()
        self.addCleanup(watch.stop)
        import gc

        for second in range(30):
            clock[0] = float(second)
            if second == 9:
                sys.modules["holdfast_test_module"] = site_hook
                self.addCleanup(sys.modules.pop, "holdfast_test_module")
            gc.collect()
        self.assertEqual(sent, [14.0], "five quiet seconds after the last new module, once")

    def test_what_is_sent(self):
        """The whole way: a script that collects garbage, with a clock that runs fast."""
        path = os.path.join(self.folder, "agent.sock")
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        agent.bind(path)
        agent.settimeout(30)
        self.addCleanup(agent.close)
        script = self.file("s.py", """
            import gc, sys, _holdfast_site as site
            ticks = iter(range(1000))
            site._watch._clock = lambda begin=site._watch._begin: begin + next(ticks)
            if len(sys.argv) > 1:
                from holdfast import _modules
                _modules.MAX_BYTES = 10
            for _ in range(30):
                gc.collect()
            assert site._watch._collected not in gc.callbacks
        """)
        listed = os.path.join(self.folder, "modules.json")
        env = {"HOLDFAST_LOCAL_RANK": "1", "HOLDFAST_GENERATION": "3", "HOLDFAST_ERROR_FILE": self.folder + "/e", "HOLDFAST_SOCKET": path, "HOLDFAST_MODULES_FILE": listed}
        done = self.python(script, **env)
        self.assertEqual(done.stderr, "")
        said = json.loads(agent.recv(1 << 20))
        self.assertEqual((said["v"], said["rank"], said["gen"], said["ev"]), (1, 1, 3, "modules"))
        self.assertIn("os", said["modules"])
        self.assertFalse(os.path.exists(listed))
        self.assertEqual(self.python(script, "long", **env).stderr, "")
        self.assertEqual(json.loads(agent.recv(1 << 20))["modules"], [])
        with open(listed) as f:
            self.assertIn("os", json.load(f))

    def test_only_installed_modules_are_named(self):
        self.file("mine.py", "")
        script = self.file("s.py", "import json, mine, xml.dom\nfrom holdfast import _modules\nprint('\\n'.join(_modules.names()))\n")
        names = self.python(script).stdout.split()
        for name in ("json", "json.decoder", "xml.dom", "os", "sys"):
            self.assertIn(name, names)
        for name in ("mine", "__main__", "holdfast", "holdfast._modules", "sitecustomize", "_holdfast_site"):
            self.assertNotIn(name, names)


if __name__ == "__main__":
    unittest.main()
