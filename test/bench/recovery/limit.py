"""The lower bound for launchers on this machine. "limit": processes that have imported everything are forked, join their group
and take one step. "limit_cold": new processes start, import, join and step.

One such process per rank runs in the same pods, under the same limits, as the systems of the benchmark. The parents of all pods
agree on a start time; the clock then runs until the last rank has finished one step of the benchmark's training script.
"limit_alone" is one new process alone on the machine: the rest of a cold start is contention.
"""
import importlib
import json
import os
import socket
import subprocess
import sys
import time

import torch.distributed as dist

import train


def step_once(rank, world, address, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR=address, MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    _, ddp, optimizer, batches = train.build(rank)
    train.train_step(ddp, optimizer, batches[0])
    return time.time()


def forked(work):
    """Runs work in a forked process; the returned function waits for its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            with os.fdopen(write, "w") as out:
                json.dump(work(), out)
        finally:
            os._exit(0)
    os.close(write)

    def answer():
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(text)

    return answer


def started(rank, world, address, port):
    """Starts a process as a launcher would, with nothing imported; the returned function waits for the time of its step."""
    process = subprocess.Popen([sys.executable, __file__, "rank", str(rank), str(world), address, str(port)], stdout=subprocess.PIPE)

    def answer():
        out, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"rank {rank} ended with {process.returncode}")
        return json.loads(out)

    return answer


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def import_what_a_step_imports():
    """Finds out in a temporary process what the first step imports, so that this process never runs a step."""

    def modules():
        step_once(0, 1, "127.0.0.1", free_port())
        return list(sys.modules)

    for name in forked(modules)():
        try:
            importlib.import_module(name)
        except Exception:  # a module that can be imported only by another one is loaded already, or not needed
            pass


class Pods:
    """The parents of all pods, which start together."""

    def __init__(self, pod, pods, per_pod, address, port):
        self.pod, self.pods, self.per_pod = pod, pods, per_pod
        self.store = dist.TCPStore(address, port, pods, is_master=pod == 0)
        self.address = socket.gethostbyname(address)  # once: a lower bound needs no name lookups

    def all_here(self, name):
        self.store.add(name, 1)
        while self.pod == 0 and self.store.add(name, 0) < self.pods:
            time.sleep(0.01)

    def measure(self, kind, times, launch):
        """Launches every rank at one time, repeatedly, and prints the time until the last one has stepped."""
        for i in range(times):
            key = f"{kind}-{i}"
            self.all_here(f"here-{key}")
            if self.pod == 0:
                self.store.set(f"go-{key}", json.dumps({"at": time.time() + 0.3, "port": free_port()}))
            go = json.loads(self.store.get(f"go-{key}"))
            time.sleep(max(0, go["at"] - time.time()))
            first, world = self.pod * self.per_pod, self.pods * self.per_pod
            ranks = [launch(first + n, world, self.address, go["port"]) for n in range(self.per_pod)]
            self.store.set(f"done-{key}-{self.pod}", json.dumps(max(wait() for wait in ranks)))
            if self.pod == 0:
                last = max(json.loads(self.store.get(f"done-{key}-{p}")) for p in range(self.pods))
                train.say(kind, rank=0, t=last, s=last - go["at"])


def main():
    pod, pods, per_pod, times, address, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
    import_what_a_step_imports()
    together = Pods(pod, pods, per_pod, address, port)
    together.measure("limit", times, lambda *where: forked(lambda: step_once(*where)))
    together.measure("limit_cold", times, started)
    for _ in range(times if pod == 0 else 0):
        began = time.time()
        train.say("limit_alone", rank=0, t=began, s=started(0, 1, "127.0.0.1", free_port())() - began)
    together.all_here("over")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        print(step_once(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
    else:
        main()
