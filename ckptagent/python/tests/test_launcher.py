"""A call of torch's launch_agent is passed to the agent. torch and the agent are fakes here; test/launchers has the real
ones."""

import json
import os
import stat
import textwrap

from .case import ScriptCase

TORCH = {
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "",
    "torch/distributed/launcher/__init__.py": "from torch.distributed.launcher.api import launch_agent",
    "torch/distributed/launcher/api.py": """
        def _get_entrypoint_name(entrypoint, args):
            return entrypoint

        def launch_agent(config, entrypoint, args, health_check_server=None):
            return "torch's own"
        """,
    "torch/distributed/elastic/__init__.py": "",
    "torch/distributed/elastic/multiprocessing/__init__.py": """
        class SignalException(Exception):
            def __init__(self, message, sigval):
                super().__init__(message)
                self.sigval = sigval
        """,
    "torch/distributed/elastic/multiprocessing/errors.py": """
        class ProcessFailure:
            def __init__(self, local_rank, pid, exitcode, error_file):
                self.local_rank, self.pid, self.exitcode, self.error_file, self.message = local_rank, pid, exitcode, "<N/A>", ""

        class ChildFailedError(Exception):
            def __init__(self, name, failures):
                super().__init__("%s: %s" % (name, {rank: (f.local_rank, f.exitcode, f.message) for rank, f in failures.items()}))
        """,
}

SCRIPT = """
    import os
    from types import SimpleNamespace
    from torch.distributed.launcher import launch_agent

    config = SimpleNamespace(min_nodes=1, max_nodes=1, nproc_per_node=2, role="r", run_id="id", max_restarts=3)
    os.environ["SET_BY_THE_LAUNCHER"] = "yes"
    try:
        print(launch_agent(config, ENTRYPOINT, ["-u", "t.py", 7], health_check_server=None))
    except BaseException as e:
        print(type(e).__name__, e)
    print("after")
    """


class HandOver(ScriptCase):
    def launch(self, agent, entrypoint="'python3'", **env):
        for name, text in TORCH.items():
            self.file("lib/" + name, textwrap.dedent(text))
        path = self.file("hf/bin/holdfast-agent", "#!/usr/bin/env python3\n" + textwrap.dedent(agent))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        script = self.file("launcher.py", textwrap.dedent(SCRIPT).replace("ENTRYPOINT", entrypoint))
        env = dict({"HOLDFAST_ROOT": os.path.join(self.folder, "hf"), "HOLDFAST_CONTAINER": "c1", "EXTRA_PATH": os.path.join(self.folder, "lib")}, **env)
        wrapper = self.file("go.py", "import os, runpy, sys\nsys.path.insert(0, os.environ['EXTRA_PATH'])\nrunpy.run_path(%r, run_name='__main__')\n" % script)
        return self.python(wrapper, **env).stdout.splitlines()

    ANSWER = """
        import json, os, sys
        os.write(int(os.environ["HOLDFAST_LAUNCH_RESULT"]), json.dumps(%s).encode())
        """

    def test_the_request_to_the_agent(self):
        out = self.launch(
            """
            import json, os, sys
            print(json.dumps(sys.argv[1:]), os.environ["SET_BY_THE_LAUNCHER"], os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"])
            os.write(int(os.environ["HOLDFAST_LAUNCH_RESULT"]), b'{"exit":0,"baseRank":4,"ranks":2}')
            """
        )
        line, _, rest = out[0].rpartition("] ")
        argv = json.loads(line + "]")
        self.assertEqual(argv[:3] + argv[4:], ["launch", "--", "torch.distributed.launcher.api", "python3", "-u", "t.py", "7"])
        config = json.loads(argv[3])
        logs = {"dir": "", "redirects": {"all": 0}, "tee": {"all": 0}, "ranks": None, "prefix": "", "outFilters": None, "errFilters": None}
        self.assertEqual(config.pop("logs"), logs)
        self.assertEqual(
            config,
            {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "role": "r", "run_id": "id", "max_restarts": 3, "shutdown_timeout": None, "virtual_local_rank": False, "refused": []},
        )
        self.assertEqual(rest, "yes SIGTERM,SIGINT,SIGHUP,SIGQUIT")
        self.assertEqual(out[1:], ["{4: None, 5: None}", "after"])

    def test_failures(self):
        failed = {"exit": 3, "baseRank": 4, "ranks": 2, "message": "m", "failures": [{"local": 1, "pid": 9, "code": 137, "signal": 9, "at": 1}]}
        self.assertEqual(self.launch(self.ANSWER % failed), ["ChildFailedError python3: {5: (1, -9, '')}", "after"])
        elsewhere = {"exit": 3, "baseRank": 4, "ranks": 2, "message": "SameFailureTwice"}
        self.assertEqual(
            self.launch(self.ANSWER % elsewhere),
            ["ChildFailedError python3: {-1: (-1, 3, 'no rank of this pod failed by itself; the gang ended with code 3: SameFailureTwice')}", "after"],
        )

    def test_a_refusal(self):
        self.assertEqual(self.launch(self.ANSWER % {"refused": "why"}), ["RuntimeError holdfast: why", "after"])

    def test_no_answer(self):
        self.assertEqual(self.launch("raise SystemExit(5)"), ["RuntimeError holdfast: the launcher's shim exited with code 5 and no result", "after"])

    def test_signals_reach_the_stand_in(self):
        out = self.launch(
            """
            import os, signal, sys, time
            def ended(number, frame):
                os.write(int(os.environ["HOLDFAST_LAUNCH_RESULT"]), b'{"exit":143}')
                sys.exit(143)
            signal.signal(signal.SIGTERM, ended)
            launcher = os.getppid()
            def handled(): # by the launcher, which sets its handlers once it has started this process
                with open("/proc/%d/status" % launcher) as f:
                    masks = [line.split()[1] for line in f if line.startswith("SigCgt")]
                return int(masks[0], 16) >> signal.SIGTERM - 1 & 1
            while not handled():
                time.sleep(0.01)
            os.kill(launcher, signal.SIGTERM)
            time.sleep(60)
            """
        )
        self.assertRegex(out[0], r"^SignalException Process \d+ got signal: ")
        self.assertEqual(out[1:], ["after"])

    def test_what_stays_torchs_own(self):
        never = "print('called')"
        self.assertEqual(self.launch(never, entrypoint="print"), ["torch's own", "after"])
        self.assertEqual(self.launch(never, HOLDFAST_LOCAL_RANK="0"), ["torch's own", "after"])
        self.assertEqual(self.launch(never, HOLDFAST_CONTAINER=""), ["torch's own", "after"])
