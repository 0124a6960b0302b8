"""Faults of node checks. FAULT says which one the process of a check has, and WHERE which pods have it: "node", those of index 1 on the node
of the first one; "slot", those of index 1; "all". The first trials begin once the test has written the file "go"."""

import os
import sys
import time


def faulty(folder, index):
    where = os.environ.get("WHERE", "")
    if where == "all" or index != "1" or os.path.exists(folder + "/healed"):
        return where == "all"
    try:
        with open(folder + "/node", "x") as f:
            f.write(os.environ["NODE_NAME"])
    except FileExistsError:
        pass
    with open(folder + "/node") as f:
        return where == "slot" or where == "node" and f.read() == os.environ["NODE_NAME"]


def plant(fault):
    import torch

    multiply = torch.matmul

    def matmul(a, b):
        if fault == "sleeps":
            time.sleep(600)
        if fault == "stopped":
            os.kill(os.getpid(), 19)
        if fault == "slow":
            time.sleep(0.3)
            return multiply(a, b)
        out = multiply(a, b)
        out[3, 5] += 1
        return out

    torch.matmul = matmul


if any("holdfast_check" in a for a in sys.orig_argv) and "CASE" in os.environ:
    folder, index = "/shared/" + os.environ["CASE"], os.environ["JOB_COMPLETION_INDEX"]
    os.makedirs(folder, exist_ok=True)
    open(folder + "/came-" + index, "w").close()
    while not os.path.exists(folder + "/go"):
        time.sleep(0.05)
    if faulty(folder, index):
        if os.environ["FAULT"] == "cold":
            if not os.path.exists(folder + "/warm"):
                open(folder + "/warm", "w").close()
                time.sleep(33)
        else:
            plant(os.environ["FAULT"])
