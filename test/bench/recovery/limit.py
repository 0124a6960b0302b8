"""What no launcher on this machine can beat: processes that have imported everything are forked, join their group and take one step.

One such process per rank runs in the same pods, under the same limits, as the systems of the benchmark. The parents of all pods agree
on a moment; from then on the clock runs until the last rank has finished one step of the benchmark's own training script.
"""
import importlib
import json
import os
import socket
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
    """Runs work in a forked process; the returned function waits for what it answered."""
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


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def import_what_a_step_imports():
    """Finds out in a throwaway process what the first step imports, so that this one never runs a step itself."""

    def modules():
        step_once(0, 1, "127.0.0.1", free_port())
        return list(sys.modules)

    for name in forked(modules)():
        try:
            importlib.import_module(name)
        except Exception:  # a module that can only be imported from within another one is there already, or of no use
            pass


def main():
    pod, pods, per_pod, times, address, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
    import_what_a_step_imports()
    store = dist.TCPStore(address, port, pods, is_master=pod == 0)
    for i in range(times):
        store.add(f"here-{i}", 1)
        if pod == 0:
            while store.add(f"here-{i}", 0) < pods:
                time.sleep(0.01)
            store.set(f"go-{i}", json.dumps({"at": time.time() + 0.3, "port": free_port()}))
        go = json.loads(store.get(f"go-{i}"))
        time.sleep(max(0, go["at"] - time.time()))
        ranks = [
            forked(lambda rank=pod * per_pod + n: step_once(rank, pods * per_pod, address, go["port"])) for n in range(per_pod)
        ]
        store.set(f"done-{i}-{pod}", json.dumps(max(wait() for wait in ranks)))
        if pod == 0:
            last = max(json.loads(store.get(f"done-{i}-{p}")) for p in range(pods))
            train.say("limit", rank=0, t=last, s=last - go["at"])
    store.add("over", 1)
    while pod == 0 and store.add("over", 0) < pods:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
