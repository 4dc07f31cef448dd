"""A script that imports ringtrain's backend, under mpirun alone."""

import os
import sys

import torch
import torch.distributed as dist

import ringtrain.torch  # noqa: F401

dist.init_process_group("ringtrain")
if "fail" in sys.argv and dist.get_rank() == 1:
    raise ValueError("of the script")
number = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(number)
if "fail" in sys.argv:
    dist.barrier()
store = dist.distributed_c10d._get_default_store()
store.set(f"from {dist.get_rank()}", "here")
for rank in range(dist.get_world_size()):
    assert store.get(f"from {rank}") == b"here"
assert store.add("all", 2) and store.compare_set("new", "", "one") == b"one" and store.num_keys() > 1
assert store.check(["new"]) and not store.check(["new", "none"])
dist.barrier()
assert store.multi_get(["new", "from 0"]) == [b"one", b"here"]
dist.barrier()
if dist.get_rank() == 0:
    assert store.delete_key("new") and not store.delete_key("new")
    print(number.tolist(), "RANK" in os.environ, dist.get_backend())
