"""DDP's buckets are moved into shared memory, and a user's tensor is not; `full`: there is no room for them."""

import gc
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringtrain.torch import shared_buckets
from tests.says import says

FULL = "full" in sys.argv
if FULL:
    shared_buckets._free_bytes = lambda: 0
dist.init_process_group("gloo")
rank, shared = dist.get_rank(), dist.group.WORLD.shared_buckets
torch.manual_seed(0)


def train(model):
    """Train by DDP and alone: with the same examples on all ranks both have the same gradients."""
    net = DistributedDataParallel(model, bucket_cap_mb=0.1, gradient_as_bucket_view=True)
    for _ in range(5):
        net.zero_grad()
        net(torch.ones(4, 200)).square().mean().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    addresses = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
    model.zero_grad(set_to_none=True)
    model(torch.ones(4, 200)).square().mean().backward()
    alone = [parameter.grad for parameter in model.parameters()]
    assert all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(grads, alone, strict=True))
    return addresses


with warnings.catch_warnings(record=True) as notes:
    warnings.simplefilter("always")
    addresses = train(torch.nn.Sequential(*[torch.nn.Linear(200, 200, bias=False) for _ in range(3)]))
warned = [str(note.message) for note in notes if "bucket" in str(note.message)]
if FULL:
    why = says(shared_buckets.SHARED_MEMORY, "0")
    assert not shared._shared and warned == ([says(f"{160000 / 2**20:.3g}", why)] if rank == 0 else []), warned
else:
    assert addresses == shared._addresses and len(addresses) == 3 and not warned, (addresses, shared._addresses, warned)
mine = torch.ones(200, 200)
place = mine.data_ptr()
for _ in range(4):
    dist.all_reduce(mine, dist.ReduceOp.AVG)
assert mine.data_ptr() == place and not mine.is_shared() and (mine == 1).all()
gc.collect()
small = torch.nn.Linear(200, 5, bias=False)
DistributedDataParallel(small)  # the buckets of the model before, which is gone, are given back
assert not shared._shared and not shared._addresses
train(torch.nn.Linear(200, 200, bias=False))
assert len(shared._shared) == (not FULL)
if rank == 0:
    print(f"all is well on {dist.get_world_size()} ranks")
