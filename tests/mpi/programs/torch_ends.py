"""A script of DDP that goes wrong on rank 1: torch_ends.py HOW. It prints "all is well" at its end."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, AT = 24, 11


class Net(nn.Module):
    """``wrong`` runs between its layers, and between their backward passes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 40), nn.Linear(40, 3)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        wrong("forward")
        y.register_hook(lambda gradient: wrong("backward"))
        return self.last(y)


def wrong(place):
    if (place, steps, rank) == (PLACES.get(how), AT, 1):
        globals()[how]()


def raised():
    raise ZeroDivisionError("of one rank")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def late():
    time.sleep(1)


def hung():
    while True:
        time.sleep(1)


PLACES = {"raised": "forward", "killed": "backward", "hung": "forward", "stopped": "backward", "late": "forward"}

if __name__ == "__main__":
    (how,) = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, steps = dist.get_rank(), 0
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    while steps < (AT if (how, rank) == ("early", 1) else STEPS):
        optimizer.zero_grad()
        net(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        steps += 1
    if (how, rank) == ("silent", 1):  # at the end of the script
        stopped()
    print("all is well", flush=True)
