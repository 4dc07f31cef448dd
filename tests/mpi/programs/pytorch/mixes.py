"""A group with a backend for each device: ringtrain takes the CPU's tensors alone."""

import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend "fake")

dist.init_process_group(sys.argv[1])
others = sys.argv[2]
for group in (dist.group.WORLD, dist.new_group(range(dist.get_world_size()))):
    ours, other = (group._get_backend(torch.device(device)) for device in ("cpu", others))
    assert ours is group and type(other) is FakeProcessGroup, (ours, other)
    each = torch.ones(2)
    dist.all_reduce(each, group=group)
    assert each.eq(dist.get_world_size()).all()
    if others == "meta":  # which needs no GPU
        work = dist.all_reduce(torch.ones(2, device="meta"), group=group, async_op=True)
        assert type(work).__name__ == "FakeWork", work
        dist.all_gather_into_tensor(torch.empty(4, device="meta"), torch.ones(2, device="meta"), group=group)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, dist.get_rank(), group=group)
    assert every == [*range(dist.get_world_size())]
    dist.barrier(group)
if dist.get_rank() == 0:
    print(f"all is well on {dist.get_world_size()} ranks")
dist.destroy_process_group()
