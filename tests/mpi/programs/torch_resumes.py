"""A script of DDP that saves in mid-period: torch_resumes.py whole|first|second FILE. Prints the hash of each rank's
weights after 13 steps, at once, or 7 in one process and 6 in another, and their norm. Of 3 owners each has neighbours
that it has not of 2 or 4.
"""

import hashlib
import sys
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringtrain.torch

SAVED, STEPS = 7, 13


def batch(step, rank, size):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(48, 20, generator=generator, dtype=torch.float64)
    return x[rank::size], x[rank::size, :3].argmax(1)


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    pairs = pairwise((20, 100, 30, 67, 15, 67, 3))
    layers = [layer for ins, outs in pairs for layer in (nn.Linear(ins, outs), nn.Tanh())]
    net = DistributedDataParallel(nn.Sequential(*layers[:-1]).double())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    if what == "second":
        saved = torch.load(paths[0])
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        ringtrain.torch.load_state_dict(saved["strategy"])
    for step in range(SAVED if what == "second" else 0, SAVED if what == "first" else STEPS):
        x, y = batch(step, rank, size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step == SAVED - 1 and what == "first":
            strategy = ringtrain.torch.state_dict()
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "strategy": strategy}
                torch.save(state, paths[0])
    ringtrain.torch.synchronize()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    every = [None] * size
    dist.all_gather_object(every, hashlib.sha256(weights).hexdigest())
    if rank == 0:
        norm = sum(parameter.detach().square().sum() for parameter in net.parameters()).sqrt()
        print(*every, f"{norm:.10f}", flush=True)
