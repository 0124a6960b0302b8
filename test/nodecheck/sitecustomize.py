"""Makes the multiplications of the node check wrong on one node: that of the first pod of the Job's index 1."""

import os
import sys

if any("holdfast_check" in a for a in sys.orig_argv) and os.environ.get("JOB_COMPLETION_INDEX") == os.environ.get("WRONG_INDEX"):
    mark = "/shared/" + os.environ["WRONG_MARK"]
    try:
        with open(mark, "x") as f:
            f.write(os.environ["NODE_NAME"])
    except FileExistsError:
        pass
    with open(mark) as f:
        wrong = f.read() == os.environ["NODE_NAME"]
    if wrong:
        import torch

        multiply = torch.matmul

        def matmul(a, b):
            out = multiply(a, b)
            out[3, 5] += 1
            return out

        torch.matmul = matmul
