"""The script of the watch benchmark: an ordinary DistributedDataParallel loop over gloo. It imports only PyTorch and the standard library.

    plain.py FOLDER

The rank takes its steps in blocks. An order is a line of FOLDER/orders-RANK: a number of steps. In half of them, in turns of a few steps,
torch's hooks for all optimizers are taken out, also those of others. The answer is a line of FOLDER/answers-RANK: the time and the
processor time of a step with the hooks and of one without, what the process had used before and after the block in processor seconds, and
how many hooks there are. Times are in seconds.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

FOLDER, RANK = sys.argv[1], int(os.environ["RANK"])
#: Steps before the clock of a block starts, as the rank comes out of a wait, and steps of a turn.
BEFORE, TURN = 3, 5
WIDTH, BATCH = 512, 64


class Training:
    def __init__(self):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()] * 2 + [torch.nn.Linear(WIDTH, 16)]
        self.ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4)
        self.inputs, self.labels = torch.randn(BATCH, WIDTH), torch.randint(0, 16, (BATCH,))
        self.blocks = 0

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.ddp(self.inputs), self.labels)
            loss.backward()
            self.optimizer.step()
            loss.item()

    def block(self, count, hooks, registered):
        before, spent = time.process_time(), [0.0] * 4
        self.steps(BEFORE)
        turns = max(1, count // (4 * TURN))
        first = self.blocks % 2  # every second block begins without the hooks, since the first steps of a block are slower
        self.blocks += 1
        for turn in range(4 * turns):
            bare = (turn % 4 in (1, 2)) != first
            hooks.clear()
            if not bare:
                hooks.update(registered)
            began, cpu = time.perf_counter(), time.process_time()
            self.steps(TURN)
            spent[2 * bare] += (time.perf_counter() - began) / (2 * turns * TURN)
            spent[2 * bare + 1] += (time.process_time() - cpu) / (2 * turns * TURN)
        return (*spent, before, time.process_time(), len(registered))


def main():
    orders = open(os.path.join(FOLDER, "orders-%d" % RANK))
    answers = os.open(os.path.join(FOLDER, "answers-%d" % RANK), os.O_WRONLY)
    dist.init_process_group("gloo")
    training, hooks = Training(), optimizers._global_optimizer_post_hooks
    registered = dict(hooks)
    while line := orders.readline():
        os.write(answers, ("%.9f %.9f %.9f %.9f %.9f %.9f %d\n" % training.block(int(line), hooks, registered)).encode())


if __name__ == "__main__":
    main()
