"""A trainer without torch: every rank adds up a number of each rank, so no rank can be a step ahead of the slowest.

    trainer.py PAUSE STATE_BYTES [LOG]

Its state is a function of rank and step, so a restore detects a torn state, or one of another step or rank. Each rank writes
its events to LOG, one line each, with one write; without LOG it prints only where it starts. With TRAINER_KEEPS=tensor the
trainer keeps its state as a tensor.
"""

import array
import hashlib
import os
import socket
import struct
import sys
import time

import holdfast

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
PAUSE, STATE_BYTES = float(sys.argv[1]), int(sys.argv[2])
LOG = open(sys.argv[3], "a", buffering=1) if len(sys.argv) > 3 else None
KEEPS = os.environ.get("TRAINER_KEEPS", "")


def log(*words):
    if LOG:
        LOG.write(" ".join(str(w) for w in (os.environ["HOLDFAST_GENERATION"], RANK) + words) + "\n")


def receive(s):
    data = b""
    while len(data) < 8:
        part = s.recv(8 - len(data))
        if not part:
            raise ConnectionError("a peer is gone")
        data += part
    return struct.unpack("<q", data)[0]


class Group:
    """Adds up one number of each rank; rank 0 collects and replies."""

    def __init__(self):
        self.peers, self.up = [], None
        if RANK == 0:
            server = socket.create_server(("", MASTER[1]), backlog=WORLD)
            while len(self.peers) < WORLD - 1:
                self.peers.append(server.accept()[0])
            server.close()
            return
        deadline = time.monotonic() + 120
        while self.up is None:
            try:
                self.up = socket.create_connection(MASTER)
            except OSError:  # rank 0 does not listen yet, or the name of its pod does not resolve yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def sum(self, n):
        if RANK == 0:
            n += sum(receive(p) for p in self.peers)
            for p in self.peers:
                p.sendall(struct.pack("<q", n))
            return n
        self.up.sendall(struct.pack("<q", n))
        return receive(self.up)


def content(step):
    """The state of a step: every part differs from that of adjacent steps and of other ranks."""
    seed = hashlib.sha256(b"%d/%d" % (RANK, step)).digest()
    return seed * (STATE_BYTES // len(seed))


def main():
    ck = holdfast.attach()
    weights, totals = bytearray(content(0)), array.array("q", [0, 0])
    kept = weights
    if KEEPS:
        import torch

        kept = torch.frombuffer(weights, dtype=torch.uint8)  # the same memory
    state = {"weights": kept, "totals": totals, "step": 0}
    ck.track(state=state, rng=True)
    step = start = ck.restore()
    if start and (weights != content(start) or state["step"] != start or totals[0] != WORLD * start * (start + 1) // 2):
        log("torn", start)
        raise SystemExit("the state of step %d is not whole" % start)
    log("start", start)
    print("generation %s rank %d starts after step %d" % (os.environ["HOLDFAST_GENERATION"], RANK, start), flush=True)
    group = Group()
    while True:
        step += 1
        if PAUSE:
            time.sleep(PAUSE)
        totals[0] += group.sum(step)
        weights[:] = content(step)
        state["step"] = step
        log("done", step)
        log("saved" if ck.save(step) else "skipped", step)


main()
