"""Ranks that do not come: a group's own timeout, monitored_barrier, and errors as PyTorch's scripts catch them."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ringtrain.errors import StalledError

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
OTHERS = ", ".join(map(str, range(1, SIZE)))


def late(text, call, *arguments, **named):
    """Make the call on rank 0 alone, which wants this error after about a second."""
    began = time.monotonic()
    if RANK == 0:
        try:
            call(*arguments, **named)
        except dist.DistBackendError as error:
            assert isinstance(error, StalledError) and text in str(error) and " timeout " in str(error), error
            assert 0.5 < time.monotonic() - began < 30, time.monotonic() - began
        else:
            raise AssertionError(text)
    # Not by a collective of the world: they would be late in it.
    dist.distributed_c10d._get_default_store().set(f"{text} {RANK}", "")
    dist.distributed_c10d._get_default_store().wait([f"{text} {rank}" for rank in range(SIZE)])


dist.monitored_barrier()
second = timedelta(seconds=1)
late("Rank 1 failed to pass monitoredBarrier in 1 s", dist.monitored_barrier, timeout=second)
late(f"Ranks {OTHERS} failed to pass", dist.monitored_barrier, timeout=second, wait_all_ranks=True)
if RANK == 0:
    print("late ranks are named", flush=True)
group = dist.new_group(timeout=second)
assert group._get_backend(torch.device("cpu")).options._timeout == second
dist.barrier(group)
late("no progress for 1 s in collective", dist.barrier, group)
dist.distributed_c10d._set_pg_timeout(second)
time.sleep(1.3 + 0.1 * (RANK == 1))  # a group that was idle for longer than its timeout
dist.all_reduce(torch.ones(2))
late("no progress for 1 s", lambda: dist.all_reduce(torch.ones(2), async_op=True).wait())
if RANK == 0:
    print("all is well", flush=True)
    sys.exit(3)  # the groups are of no more use
time.sleep(1000)
