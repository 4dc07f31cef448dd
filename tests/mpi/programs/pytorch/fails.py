"""A script that goes wrong on rank 1, in the way of its argument, after a few collectives."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
how, number = sys.argv[1], dist.get_rank()
if how in ("backward", "hook"):
    net = DistributedDataParallel(torch.nn.Linear(64, 10))
    if how == "hook":
        net.register_comm_hook(None, fp16_compress_hook)
    net(torch.ones(4, 64)).sum().backward()  # the first loads modules, on one rank for longer than on another
    loss = net(torch.ones(4, 64)).sum()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
    if number == 1:
        time.sleep(1000)
    loss.backward()
if number == 1:
    if how == "raise":
        raise ValueError("of the script")
    if how == "exit":
        sys.exit(9)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(1000)
if how == "own":
    dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
work = dist.all_reduce(torch.ones(1000 + (number == 1 and how == "shape")), async_op=True)
work.wait()
time.sleep(1000)  # a rank that has done its part is ended with the others
