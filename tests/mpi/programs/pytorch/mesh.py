"""DeviceMesh and DTensor: a product whose operands are divided, the same over groups of a two-dimensional mesh."""

import json

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main():
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo", init_method="env://")
    size = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (size, 1), mesh_dim_names=("data", "model"))
    data = torch.Generator().manual_seed(1)
    a, b = torch.randn(6, 12, generator=data), torch.randn(12, 6, generator=data)
    values = []
    for placed in (Shard(0), Shard(1), Replicate()):
        left = distribute_tensor(a, mesh["data"], [placed])
        right = distribute_tensor(b, mesh["data"], [Shard(0)])
        for product in (left @ right, (left @ right).redistribute(placements=[Shard(1)])):
            values.append(product.full_tensor().double().square().sum().item())
    left = distribute_tensor(a, mesh, [Shard(0), Replicate()])
    values.append(left.redistribute(placements=[Shard(1), Replicate()]).full_tensor().double().norm().item())
    values.append(left.sum().full_tensor().item())
    if dist.get_rank() == 0:
        print(json.dumps({"losses": values}))


main()
