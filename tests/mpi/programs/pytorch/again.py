"""Process groups that are made again after a call that differs among ranks, which the script catches."""

import torch
import torch.distributed as dist

from ringtrain.errors import MismatchError

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
try:
    dist.all_reduce(torch.ones(4 + dist.get_rank()))
except dist.DistBackendError as error:
    assert isinstance(error, MismatchError), error
dist.destroy_process_group()
dist.init_process_group("gloo")  # the call that was cut does not meet those of this group
total = torch.ones(4)
dist.all_reduce(total)
assert total.tolist() == [dist.get_world_size()] * 4
if dist.get_rank() == 0:
    print(f"all is well on {dist.get_world_size()} ranks")
